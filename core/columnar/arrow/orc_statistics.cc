// The postscript tells where the statistics lie and how they are compressed; the footer lists the columns. Arrow has
// decoded both. The statistics are decompressed and decoded here. Each kind of value has a function that computes the
// statistics of decoded values, and Compare reports where they differ.
#include "core/columnar/arrow/orc_statistics.h"

#include <arrow/array.h>
#include <arrow/io/interfaces.h>
#include <arrow/type.h>
#include <arrow/util/compression.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "core/columnar/arrow/convert.h"
#include "core/columnar/arrow/proto_fields.h"

namespace lockstep::columnar {
namespace {

// The format has 23 bits for the length of a compressed block, and no decompressed block is longer.
constexpr uint64_t kMostBlockBytes = 1 << 23;

// The kinds of columns that are checked, by the numbers of the format.
enum Kind : uint64_t { kBoolean, kByte, kShort, kInt, kLong, kFloat, kDouble, kString, kBinary, kList = 10 };
constexpr uint64_t kDate = 15, kVarchar = 16;

// The number of ORC's C++ library among the writers.
constexpr uint64_t kCppWriter = 1;

Status Damaged(const std::string& what) { return DataLoss("the statistics of its stripes are damaged: " + what); }

// The part of the postscript that concerns the statistics.
struct Postscript {
  uint64_t footer_bytes = 0;
  uint64_t compression = 0;
  uint64_t block_bytes = 0;
  uint64_t metadata_bytes = 0;
  uint64_t writer_version = 0;
};

Postscript ReadPostscript(std::string_view message) {
  Postscript postscript;
  ProtoFields fields(message);
  while (const auto field = fields.Next()) {
    if (field->number == 1) postscript.footer_bytes = field->value;
    if (field->number == 2) postscript.compression = field->value;
    if (field->number == 3) postscript.block_bytes = field->value;
    if (field->number == 5) postscript.metadata_bytes = field->value;
    if (field->number == 6) postscript.writer_version = field->value;
  }
  return postscript;
}

// Returns null for bytes that are not compressed, and for a codec that Arrow lacks.
Result<std::unique_ptr<arrow::util::Codec>> CodecOf(uint64_t compression) {
  arrow::util::GZipCodecOptions deflate;
  deflate.gzip_format = arrow::util::GZipFormat::DEFLATE;
  const auto make = [&]() -> arrow::Result<std::unique_ptr<arrow::util::Codec>> {
    switch (compression) {
      case 1: return arrow::util::Codec::Create(arrow::Compression::GZIP, deflate);
      case 2: return arrow::util::Codec::Create(arrow::Compression::SNAPPY);
      case 4: return arrow::util::Codec::Create(arrow::Compression::LZ4);
      case 5: return arrow::util::Codec::Create(arrow::Compression::ZSTD);
      default: return nullptr;
    }
  };
  auto codec = make();
  if (!codec.ok()) return FromArrow(codec.status());
  return *std::move(codec);
}

// Decompresses one block into `block`, which has the largest allowed size, and returns the block's length. Arrow's
// Zstandard needs the length beforehand, except as a stream.
arrow::Result<int64_t> Decompress(arrow::util::Codec& codec, std::string_view data, std::string* block) {
  const auto size = static_cast<int64_t>(data.size()), most = static_cast<int64_t>(block->size());
  const auto* from = reinterpret_cast<const uint8_t*>(data.data());
  auto* to = reinterpret_cast<uint8_t*>(block->data());
  if (codec.compression_type() != arrow::Compression::ZSTD) return codec.Decompress(size, from, most, to);
  ARROW_ASSIGN_OR_RAISE(const auto stream, codec.MakeDecompressor());
  ARROW_ASSIGN_OR_RAISE(const auto done, stream->Decompress(size, from, most, to));
  if (!stream->IsFinished()) return arrow::Status::IOError("a block ends before its data");
  return done.bytes_written;
}

// Decompresses consecutive blocks: each is 3 bytes of length * 2 + whether it is uncompressed, then the block.
Result<std::string> Decompressed(std::string_view data, arrow::util::Codec& codec, uint64_t block_bytes) {
  if (block_bytes > kMostBlockBytes) return Damaged("a block of " + std::to_string(block_bytes) + " bytes");
  std::string whole, block(block_bytes, '\0');
  while (!data.empty()) {
    if (data.size() < 3) return Damaged("a block's length is cut off");
    const auto byte = [&](int i) { return uint64_t{static_cast<uint8_t>(data[i])}; };
    const uint64_t header = byte(0) | byte(1) << 8 | byte(2) << 16;
    const uint64_t size = header >> 1;
    data.remove_prefix(3);
    if (size > data.size()) return Damaged("a block is cut off");
    if (header & 1) {
      whole.append(data.substr(0, size));
    } else {
      const auto bytes = Decompress(codec, data.substr(0, size), &block);
      if (!bytes.ok()) return Damaged(bytes.status().message());
      whole.append(block, 0, *bytes);
    }
    data.remove_prefix(size);
  }
  return whole;
}

template <typename Value>
std::string Text(const Value& value) {
  std::ostringstream text;
  text.precision(std::numeric_limits<double>::max_digits10);
  text << value;
  return text.str();
}

// Compares a value with the file's one, `wanted`, if the file has it.
template <typename Value>
Status Compare(const char* what, const std::optional<Value>& wanted, const Value& found) {
  if (!wanted || *wanted == found) return OkStatus();
  return DataLoss(std::string("its values are damaged: ") + what + " is " + Text(found) +
                  ", and the statistics of the stripe say " + Text(*wanted));
}

// Calls `use` with each value that is not null.
template <typename Array, typename Use>
void ForEach(const arrow::Array& values, const Use& use) {
  const auto& typed = static_cast<const Array&>(values);
  for (int64_t i = 0; i < typed.length(); ++i) {
    if (!typed.IsNull(i)) use(typed, i);
  }
}

// Sums wrap around: a writer leaves out a sum that overflows, and a single flipped bit still changes a wrapped sum.
struct Integers {
  int64_t least = std::numeric_limits<int64_t>::max(), greatest = std::numeric_limits<int64_t>::min();
  uint64_t sum = 0;

  template <typename Array>
  static Integers Of(const arrow::Array& values) {
    Integers found;
    ForEach<Array>(values, [&](const Array& array, int64_t i) {
      const int64_t value = array.Value(i);
      found.least = std::min(found.least, value);
      found.greatest = std::max(found.greatest, value);
      found.sum += static_cast<uint64_t>(value);
    });
    return found;
  }
};

// In any order, the sum of n numbers is wrong by at most n * 2^-53 of the sum of their magnitudes. Here two
// such sums are compared. (Higham, Accuracy and Stability of Numerical Algorithms, 4.2)
struct Doubles {
  double least = std::numeric_limits<double>::infinity(), greatest = -std::numeric_limits<double>::infinity();
  double sum = 0, magnitude = 0, count = 0;

  template <typename Array>
  static Doubles Of(const arrow::Array& values) {
    Doubles found;
    ForEach<Array>(values, [&](const Array& array, int64_t i) {
      const double value = array.Value(i);
      found.least = std::min(found.least, value);
      found.greatest = std::max(found.greatest, value);
      found.sum += value;
      found.magnitude += std::abs(value);
      ++found.count;
    });
    return found;
  }
  double SumError() const { return 2 * (count + 1) * std::ldexp(magnitude, -53); }
};

std::optional<Integers> IntegersOf(const arrow::Array& values) {
  switch (values.type_id()) {
    case arrow::Type::INT8: return Integers::Of<arrow::Int8Array>(values);
    case arrow::Type::INT16: return Integers::Of<arrow::Int16Array>(values);
    case arrow::Type::INT32: return Integers::Of<arrow::Int32Array>(values);
    case arrow::Type::INT64: return Integers::Of<arrow::Int64Array>(values);
    case arrow::Type::DATE32: return Integers::Of<arrow::Date32Array>(values);
    default: return std::nullopt;
  }
}

template <typename Array>
int64_t Lengths(const arrow::Array& values) {
  int64_t length = 0;
  ForEach<Array>(values, [&](const Array& array, int64_t i) { length += array.value_length(i); });
  return length;
}

}  // namespace

Result<std::shared_ptr<const OrcStatistics>> OrcStatistics::Read(const std::string& tail, int64_t stripes,
                                                                 arrow::io::RandomAccessFile& file) {
  auto statistics = std::make_shared<OrcStatistics>();
  Postscript postscript;
  uint64_t file_bytes = 0, postscript_bytes = 0;
  std::string_view footer;
  ProtoFields fields(tail);
  while (const auto field = fields.Next()) {
    if (field->number == 1) postscript = ReadPostscript(field->bytes);
    if (field->number == 2) footer = field->bytes;
    if (field->number == 3) file_bytes = field->value;
    if (field->number == 4) postscript_bytes = field->value;
  }
  // Version 0 marks writers whose statistics of strings are wrong (HIVE-8732).
  if (postscript.metadata_bytes == 0 || postscript.writer_version == 0) return {std::move(statistics)};
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<arrow::util::Codec> codec, CodecOf(postscript.compression));
  if (codec == nullptr && postscript.compression != 0) return {std::move(statistics)};
  const uint64_t behind = 1 + postscript_bytes + postscript.footer_bytes;
  if (behind > file_bytes || postscript.metadata_bytes > file_bytes - behind) {
    return Damaged("they are longer than the file");
  }
  const auto read = file.ReadAt(static_cast<int64_t>(file_bytes - behind - postscript.metadata_bytes),
                                static_cast<int64_t>(postscript.metadata_bytes));
  if (!read.ok()) return FromArrow(read.status());
  std::string metadata = (*read)->ToString();
  if (codec != nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(metadata, Decompressed(metadata, *codec, postscript.block_bytes));
  }
  LOCKSTEP_RETURN_IF_ERROR(statistics->ReadFooter(footer));
  LOCKSTEP_RETURN_IF_ERROR(statistics->ReadStripes(metadata));
  if (const auto found = static_cast<int64_t>(statistics->stripes_.size()); found != stripes && found != 0) {
    return Damaged("they cover " + std::to_string(found) + " stripes, and the file has " + std::to_string(stripes));
  }
  return {std::move(statistics)};
}

Status OrcStatistics::ReadFooter(std::string_view footer) {
  ProtoFields fields(footer);
  while (const auto field = fields.Next()) {
    if (field->number == 9) has_double_sums_ = field->value == kCppWriter;
    if (field->number != 4) continue;
    Type& type = types_.emplace_back();
    ProtoFields of_type(field->bytes);
    while (const auto part = of_type.Next()) {
      if (part->number == 1) type.kind = part->value;
      if (part->number != 2) continue;
      if (part->bytes.empty()) type.children.push_back(part->value);
      ProtoFields packed(part->bytes);
      while (const auto child = packed.NextPacked()) type.children.push_back(*child);
    }
  }
  return fields.damaged() ? Damaged("the types of columns") : OkStatus();
}

Status OrcStatistics::ReadStripes(std::string_view metadata) {
  ProtoFields fields(metadata);
  while (const auto field = fields.Next()) {
    if (field->number != 1) continue;
    std::vector<Column>& columns = stripes_.emplace_back();
    ProtoFields of_stripe(field->bytes);
    while (const auto part = of_stripe.Next()) {
      if (part->number != 1) continue;
      LOCKSTEP_ASSIGN_OR_RETURN(Column column, ReadColumn(part->bytes));
      columns.push_back(column);
    }
    if (of_stripe.damaged()) return Damaged("an entry of a stripe");
  }
  return fields.damaged() ? Damaged("the list of stripes") : OkStatus();
}

Result<OrcStatistics::Column> OrcStatistics::ReadColumn(std::string_view message) {
  Column column;
  ProtoFields fields(message);
  while (const auto field = fields.Next()) {
    if (field->number == 1) column.count = field->value;
    if (field->number == 10) column.has_null = field->value != 0;
    ProtoFields parts(field->bytes);
    while (const auto part = parts.Next()) {
      const uint32_t place = field->number * 10 + part->number;
      if (place == 21 || place == 71) column.least = part->Signed();
      if (place == 22 || place == 72) column.greatest = part->Signed();
      if (place == 23) column.sum = part->Signed();
      if (place == 31) column.least_double = part->Double();
      if (place == 32) column.greatest_double = part->Double();
      if (place == 33) column.double_sum = part->Double();
      if (place == 43 || place == 81) column.length = part->Signed();
      if (place == 51) column.trues = part->bytes.empty() ? part->value : ProtoFields(part->bytes).NextPacked();
    }
    if (parts.damaged()) return Damaged("an entry of a column");
  }
  if (fields.damaged()) return Damaged("an entry of a column");
  return column;
}

Status OrcStatistics::Check(int64_t stripe, int column, const arrow::Array& values) const {
  if (stripes_.empty()) return OkStatus();
  if (types_.empty() || static_cast<size_t>(column) >= types_[0].children.size()) return Damaged("a column is missing");
  return CheckColumn(stripe, types_[0].children[column], values);
}

Status OrcStatistics::CheckColumn(int64_t stripe, uint64_t id, const arrow::Array& values) const {
  const std::vector<Column>& columns = stripes_[stripe];
  if (id >= types_.size()) return Damaged("a column is missing");
  if (id >= columns.size()) return OkStatus();
  const Column& wanted = columns[id];
  if (wanted.count == uint64_t{0}) return OkStatus();
  const auto nulls = static_cast<uint64_t>(values.null_count());
  LOCKSTEP_RETURN_IF_ERROR(Compare("their number", wanted.count, static_cast<uint64_t>(values.length()) - nulls));
  if (wanted.has_null == false) LOCKSTEP_RETURN_IF_ERROR(Compare("the number of nulls", {uint64_t{0}}, nulls));
  if (nulls == static_cast<uint64_t>(values.length())) return OkStatus();
  switch (types_[id].kind) {
    case kBoolean:
      if (values.type_id() != arrow::Type::BOOL) return OkStatus();
      return Compare("the number of true values", wanted.trues,
                     static_cast<uint64_t>(static_cast<const arrow::BooleanArray&>(values).true_count()));
    case kByte:
    case kShort:
    case kInt:
    case kLong:
    case kDate: return CheckIntegers(wanted, values);
    case kFloat:
    case kDouble: return CheckDoubles(wanted, values);
    case kString:
    case kVarchar:
    case kBinary:
      if (values.type_id() != arrow::Type::STRING && values.type_id() != arrow::Type::BINARY) return OkStatus();
      return Compare("the total length", wanted.length, Lengths<arrow::BinaryArray>(values));
    case kList: return CheckElements(stripe, id, values);
    default: return OkStatus();
  }
}

Status OrcStatistics::CheckIntegers(const Column& wanted, const arrow::Array& values) {
  const std::optional<Integers> found = IntegersOf(values);
  if (!found) return OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(Compare("the least", wanted.least, found->least));
  LOCKSTEP_RETURN_IF_ERROR(Compare("the greatest", wanted.greatest, found->greatest));
  return Compare("the sum", wanted.sum, static_cast<int64_t>(found->sum));
}

// Writers treat NaN differently: some leave it out of the sum, the least and the greatest value, others do not. If the
// sum of the magnitudes is infinite, the sum of the values depends on their order.
Status OrcStatistics::CheckDoubles(const Column& wanted, const arrow::Array& values) const {
  Doubles found;
  if (values.type_id() == arrow::Type::FLOAT) {
    found = Doubles::Of<arrow::FloatArray>(values);
  } else if (values.type_id() == arrow::Type::DOUBLE) {
    found = Doubles::Of<arrow::DoubleArray>(values);
  } else {
    return OkStatus();
  }
  if (std::isnan(found.magnitude)) return OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(Compare("the least", wanted.least_double, found.least));
  LOCKSTEP_RETURN_IF_ERROR(Compare("the greatest", wanted.greatest_double, found.greatest));
  if (!has_double_sums_ || std::isinf(found.magnitude)) return OkStatus();
  if (wanted.double_sum && std::abs(*wanted.double_sum - found.sum) <= found.SumError()) return OkStatus();
  return Compare("the sum", wanted.double_sum, found.sum);
}

// Checks the elements of all lists, which are a column of their own.
Status OrcStatistics::CheckElements(int64_t stripe, uint64_t id, const arrow::Array& values) const {
  if (values.type_id() != arrow::Type::LIST) return OkStatus();
  const auto elements = static_cast<const arrow::ListArray&>(values).Flatten();
  if (!elements.ok()) return FromArrow(elements.status());
  if (types_[id].children.size() != 1) return Damaged("a list has no column of elements");
  return CheckColumn(stripe, types_[id].children[0], **elements);
}

}  // namespace lockstep::columnar
