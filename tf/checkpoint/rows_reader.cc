#include "tf/checkpoint/rows_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/tensor_slice.h"
#include "tensorflow/core/lib/hash/crc32c.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/protobuf/tensor_bundle.pb.h"
#include "tensorflow/core/util/saved_tensor_slice_util.h"
#include "tensorflow/core/util/tensor_bundle/naming.h"
#include "tf/bridge/convert.h"

namespace lockstep {

namespace tf = ::tensorflow;

namespace {

// The bytes that are read at once if nobody wants them.
constexpr int64_t kDroppedBytes = 1 << 20;

// Reads the entry of a key in the checkpoint's index.
template <typename Message>
Status ReadEntry(tf::BundleReader* file, const std::string& key, Message* message) {
  file->Seek(key);
  if (file->Valid() && file->key() == key) {
    const auto value = file->value();
    if (message->ParseFromArray(value.data(), static_cast<int>(value.size()))) return OkStatus();
  }
  return DataLoss("its index has an entry that cannot be read");
}

// Reads bytes of a file at an offset. `got` is what was read; it need not lie in `into`. Newer versions of TensorFlow
// take a span and deprecate the older call.
template <typename File>
absl::Status ReadFrom(const File& file, uint64_t offset, absl::Span<char> into, absl::string_view& got) {
  if constexpr (requires { file.Read(offset, got, into); }) {
    return file.Read(offset, got, into);
  } else {
    return file.Read(offset, into.size(), &got, into.data());
  }
}

}  // namespace

Result<std::unique_ptr<RowsReader>> RowsReader::Open(tf::BundleReader* file, const std::string& prefix,
                                                     const std::string& name, tf::DataType dtype,
                                                     const tf::TensorShape& shape, RowRange rows) {
  // A tensor without rows need not be there: no worker writes it.
  if (shape.num_elements() == 0) return std::unique_ptr<RowsReader>(new RowsReader(name, 0, rows.begin));
  if (!file->Contains(name)) return NotFound(absl::StrCat("tensor '", name, "' not found in checkpoint"));
  tf::DataType stored_type;
  tf::TensorShape stored;
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(file->LookupDtypeAndShape(name, &stored_type, &stored)));
  if (stored_type != dtype || stored != shape) {
    return InvalidArgument(absl::StrCat("tensor '", name, "' is ", tf::DataTypeString(stored_type),
                                        stored.DebugString(), " in the checkpoint, wanted ", tf::DataTypeString(dtype),
                                        shape.DebugString()));
  }
  const int64_t row_bytes = shape.num_elements() / shape.dim_size(0) * tf::DataTypeSize(dtype);
  std::unique_ptr<RowsReader> reader(new RowsReader(name, row_bytes, rows.begin));
  if (rows.count() > 0) LOCKSTEP_RETURN_IF_ERROR(reader->FindPieces(file, prefix, shape, rows));
  return reader;
}

Status RowsReader::FindPieces(tf::BundleReader* file, const std::string& prefix, const tf::TensorShape& shape,
                              RowRange rows) {
  tf::BundleHeaderProto header;
  LOCKSTEP_RETURN_IF_ERROR(ReadEntry(file, tf::kHeaderEntryKey, &header));
  if (header.endianness() != tf::BundleHeaderProto::LITTLE) {
    return Unimplemented("it was written on a big-endian machine");
  }
  for (int f = 0; f < header.num_shards(); ++f) files_.push_back(tf::DataFilename(prefix, f, header.num_shards()));

  std::vector<tf::TensorSlice> slices;
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(file->LookupTensorSlices(name_, &slices)));
  const auto add = [&](const std::string& key, RowRange stored) -> Status {
    tf::BundleEntryProto entry;
    LOCKSTEP_RETURN_IF_ERROR(ReadEntry(file, key, &entry));
    if (entry.shard_id() < 0 || entry.shard_id() >= header.num_shards() || entry.offset() < 0 ||
        entry.size() != stored.count() * row_bytes_) {
      return DataLoss(absl::StrCat("tensor '", name_, "', rows [", stored.begin, ", ", stored.end, "): ", entry.size(),
                                   " bytes in file ", entry.shard_id(), " of ", header.num_shards(), ", wanted ",
                                   stored.count() * row_bytes_));
    }
    pieces_.push_back({stored, entry.shard_id(), entry.offset(), tf::crc32c::Unmask(entry.crc32c())});
    return OkStatus();
  };
  if (slices.empty()) LOCKSTEP_RETURN_IF_ERROR(add(name_, {0, shape.dim_size(0)}));
  for (const tf::TensorSlice& slice : slices) {
    for (int d = 1; d < slice.dims(); ++d) {
      if (!slice.IsFullAt(d) && (slice.start(d) != 0 || slice.length(d) != shape.dim_size(d))) {
        return Unimplemented(
            absl::StrCat("tensor '", name_, "' is stored in slices of columns: ", slice.DebugString()));
      }
    }
    const RowRange stored =
        slice.IsFullAt(0) ? RowRange{0, shape.dim_size(0)} : RowRange{slice.start(0), slice.start(0) + slice.length(0)};
    if (stored.end <= rows.begin || stored.begin >= rows.end) continue;
    LOCKSTEP_RETURN_IF_ERROR(add(tf::checkpoint::EncodeTensorNameSlice(name_, slice), stored));
  }
  std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) { return a.rows.begin < b.rows.begin; });
  int64_t next = pieces_.empty() ? rows.begin - 1 : pieces_.front().rows.begin;
  for (const Piece& piece : pieces_) {
    if (piece.rows.begin != next) break;
    next = piece.rows.end;
  }
  if (pieces_.empty() || pieces_.front().rows.begin > rows.begin || next < rows.end) {
    return DataLoss(absl::StrCat("tensor '", name_, "' of ", shape.dim_size(0), " rows lacks rows of [", rows.begin,
                                 ", ", rows.end, ")"));
  }
  return OkStatus();
}

Status RowsReader::Advance(int64_t count, char* data) {
  if (row_bytes_ == 0) return OkStatus();
  while (count > 0) {
    const RowRange rows = pieces_[piece_].rows;
    const int64_t here = std::min(count, rows.end - next_);
    if (data == nullptr && !begun_ && here == rows.count()) {
      ++piece_;  // nobody reads any of it
    } else {
      if (!begun_) LOCKSTEP_RETURN_IF_ERROR(BeginPiece());
      LOCKSTEP_RETURN_IF_ERROR(ReadBytes(here * row_bytes_, data));
    }
    next_ += here;
    count -= here;
    if (data != nullptr) data += here * row_bytes_;
  }
  return OkStatus();
}

Status RowsReader::Finish() {
  return begun_ ? ReadBytes((pieces_[piece_].rows.end - next_) * row_bytes_, nullptr) : OkStatus();
}

Status RowsReader::BeginPiece() {
  const Piece& piece = pieces_[piece_];
  if (open_file_ != piece.file) {
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(env_->NewRandomAccessFile(files_[piece.file], &file_)));
    open_file_ = piece.file;
  }
  begun_ = true;
  done_ = 0;
  checksum_ = 0;
  return ReadBytes((next_ - piece.rows.begin) * row_bytes_, nullptr);
}

Status RowsReader::ReadBytes(int64_t bytes, char* data) {
  const Piece& piece = pieces_[piece_];
  const auto where = [&] {
    return absl::StrCat(files_[piece.file], ": tensor '", name_, "', rows [", piece.rows.begin, ", ", piece.rows.end,
                        "): ");
  };
  while (bytes > 0) {
    int64_t now = bytes;
    char* into = data;
    if (data == nullptr) {
      now = std::min(bytes, kDroppedBytes);
      dropped_.resize(kDroppedBytes);
      into = dropped_.data();
    }
    absl::string_view got;
    const absl::Status read = ReadFrom(*file_, piece.offset + done_, absl::MakeSpan(into, now), got);
    if (absl::IsOutOfRange(read) || (read.ok() && static_cast<int64_t>(got.size()) < now)) {
      return DataLoss(absl::StrCat(where(), "the file ends after ", piece.offset + done_ + got.size(), " bytes"));
    }
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(read));
    if (got.data() != into) std::copy(got.begin(), got.end(), into);
    checksum_ = tf::crc32c::Extend(checksum_, into, now);
    done_ += now;
    bytes -= now;
    if (data != nullptr) data += now;
  }
  if (done_ < piece.rows.count() * row_bytes_) return OkStatus();
  if (checksum_ != piece.checksum) return DataLoss(absl::StrCat(where(), "its checksum is wrong: the file is damaged"));
  begun_ = false;
  ++piece_;
  return OkStatus();
}

}  // namespace lockstep
