#include "core/columnar/parquet_file.h"

#include <arrow/array.h>
#include <arrow/io/file.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <new>

#include "core/columnar/arrow_convert.h"

namespace lockstep::columnar {
namespace {

// Runs `call`, which returns our Status or Result, and turns what Arrow or the standard library throws into a Status.
template <typename Call>
auto Guard(const std::string& who, const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(who + ": out of memory");
  } catch (const std::exception& error) {
    return DataLoss(who + ": " + error.what());
  }
}

std::string FileText(const std::string& path) { return "file '" + path + "'"; }
std::string ColumnText(const std::string& path, const std::string& name) {
  return FileText(path) + " column '" + name + "'";
}

// The leaf columns below a field of the schema.
void AppendLeaves(const parquet::arrow::SchemaField& field, std::vector<int>* leaves) {
  if (field.is_leaf()) leaves->push_back(field.column_index);
  for (const auto& child : field.children) AppendLeaves(child, leaves);
}

// Whether lists of `found` can be read as `wanted`: the same, or with the innermost ragged levels as fixed dimensions.
bool Fits(const ColumnType& found, const ColumnType& wanted) {
  const size_t levels = found.ragged_rank + found.shape.size();
  return found.value == wanted.value && wanted.ragged_rank <= found.ragged_rank &&
         wanted.ragged_rank + wanted.shape.size() == levels &&
         std::equal(found.shape.rbegin(), found.shape.rend(), wanted.shape.rbegin());
}

class ArrowFile;

// Reads a column through a record batch reader of its own, which decodes `piece_rows` rows at a time.
class ArrowStream : public ColumnStream {
 public:
  ArrowStream(std::shared_ptr<ParquetFile> file, Field field, int64_t first_row)
      : file_(std::move(file)),
        field_(std::move(field)),
        who_(ColumnText(file_->path(), field_.name)),
        row_(first_row) {}

  std::unique_ptr<arrow::RecordBatchReader> reader;

  Result<Column> Read(int64_t rows) override {
    std::vector<Column> parts;
    const auto convert = [&](std::shared_ptr<arrow::Array> array) -> Status {
      auto column = ColumnFromArrow(std::move(array), field_, row_);
      if (!column.ok()) return column.status().WithPrefix(who_ + ": ");
      parts.push_back(*std::move(column));
      return OkStatus();
    };
    LOCKSTEP_RETURN_IF_ERROR(Take(rows, convert));
    return parts.size() == 1 ? std::move(parts[0]) : Concatenate(parts);
  }

  Status Skip(int64_t rows) override {
    return Take(rows, [](const std::shared_ptr<arrow::Array>&) { return OkStatus(); });
  }

 private:
  // Hands the next `rows` rows to `use`, in one or more arrays.
  template <typename Use>
  Status Take(int64_t rows, const Use& use) {
    return Guard(who_, [&]() -> Status {
      while (rows > 0) {
        if (rest_ == nullptr) {
          std::shared_ptr<arrow::RecordBatch> batch;
          const arrow::Status status = reader->ReadNext(&batch);
          if (!status.ok()) return FromArrow(status).WithPrefix(who_ + ": ");
          if (batch == nullptr) {
            return DataLoss(who_ + ": the row group ends at row " + std::to_string(row_) + " of the file, " +
                            std::to_string(rows) + " rows before what the footer says");
          }
          if (batch->num_rows() == 0) continue;
          rest_ = batch->column(0);
        }
        std::shared_ptr<arrow::Array> array = rest_;
        rest_ = nullptr;
        if (array->length() > rows) {
          rest_ = array->Slice(rows);
          array = array->Slice(0, rows);
        }
        LOCKSTEP_RETURN_IF_ERROR(use(array));
        rows -= array->length();
        row_ += array->length();
      }
      return OkStatus();
    });
  }

  const std::shared_ptr<ParquetFile> file_;
  const Field field_;
  const std::string who_;
  int64_t row_;  // of the file, next to be read
  std::shared_ptr<arrow::Array> rest_;
};

// A column that the file lacks.
class DefaultStream : public ColumnStream {
 public:
  explicit DefaultStream(Field field) : field_(std::move(field)) {}
  Result<Column> Read(int64_t rows) override { return DefaultColumn(field_, rows); }
  Status Skip(int64_t) override { return OkStatus(); }

 private:
  const Field field_;
};

// A file through Arrow's reader.
class ArrowFile : public ParquetFile {
 public:
  Status Init(const std::string& path, std::optional<int64_t> piece_rows) {
    path_ = path;
    LOCKSTEP_RETURN_IF_ERROR(CheckReadable());
    auto file = arrow::io::ReadableFile::Open(path);
    if (!file.ok()) return Error(file.status());
    parquet::ReaderProperties properties = parquet::default_reader_properties();
    // Where a writer left checksums, they turn silent damage into an error.
    properties.set_page_checksum_verification(true);
    parquet::ArrowReaderProperties arrow_properties;
    arrow_properties.set_use_threads(false);
    arrow_properties.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    if (auto status = builder.Open(*file, properties); !status.ok()) return Error(status);
    builder.properties(arrow_properties);
    auto reader = builder.Build();
    if (!reader.ok()) return Error(reader.status());
    reader_ = *std::move(reader);
    return ReadFooter(piece_rows);
  }

  Result<std::unique_ptr<ColumnStream>> OpenColumn(int group, const Field& field) override {
    const std::string who = ColumnText(path_, field.name);
    return Guard(who, [&]() -> Result<std::unique_ptr<ColumnStream>> {
      const auto found = std::find_if(columns_.begin(), columns_.end(), [&](auto& c) { return c.name == field.name; });
      if (found == columns_.end()) return std::unique_ptr<ColumnStream>(new DefaultStream(field));
      std::vector<int> leaves;
      AppendLeaves(reader_->manifest().schema_fields[found - columns_.begin()], &leaves);
      int64_t first_row = 0;
      for (int i = 0; i < group; ++i) first_row += group_rows_[i];
      auto stream = std::make_unique<ArrowStream>(shared_from_this(), field, first_row);
      auto reader = reader_->GetRecordBatchReader({group}, leaves);
      if (!reader.ok()) return FromArrow(reader.status()).WithPrefix(who + ": ");
      stream->reader = *std::move(reader);
      return std::unique_ptr<ColumnStream>(std::move(stream));
    });
  }

 private:
  Status Error(const arrow::Status& status) const {
    return FromArrow(status).WithPrefix(FileText(path_) + ": not a readable Parquet file: ");
  }

  Status CheckReadable() const {
    namespace fs = std::filesystem;
    std::error_code error;
    const fs::file_status status = fs::status(path_, error);
    if (status.type() == fs::file_type::not_found) return NotFound(FileText(path_) + " does not exist");
    if (error) return Internal(FileText(path_) + ": " + error.message());
    if (status.type() == fs::file_type::directory) return InvalidArgument(FileText(path_) + " is a folder");
    if (fs::is_regular_file(status) && fs::file_size(path_, error) == 0) {
      return DataLoss(FileText(path_) + ": not a readable Parquet file: it is empty (0 bytes)");
    }
    return OkStatus();
  }

  Status ReadFooter(std::optional<int64_t> piece_rows) {
    const parquet::FileMetaData& footer = *reader_->parquet_reader()->metadata();
    int64_t rows = 0, bytes = 0;
    for (int group = 0; group < footer.num_row_groups(); ++group) {
      const auto metadata = footer.RowGroup(group);
      if (metadata->num_rows() < 0 || __builtin_add_overflow(rows, metadata->num_rows(), &rows)) {
        return DataLoss(FileText(path_) + ": row group " + std::to_string(group) + " has " +
                        std::to_string(metadata->num_rows()) + " rows");
      }
      group_rows_.push_back(metadata->num_rows());
      if (metadata->num_rows() > 0) bytes = std::max(bytes, metadata->total_byte_size() / metadata->num_rows());
    }
    if (rows != footer.num_rows()) {
      return DataLoss(FileText(path_) + ": the row groups have " + std::to_string(rows) + " rows, the footer says " +
                      std::to_string(footer.num_rows()));
    }
    // Sizes in the footer are those of encoded values, so a row also counts with what its columns take decoded.
    // Multiples of 64 rows keep slices of a piece on a border for vector instructions.
    bytes = std::max({bytes, int64_t{1}, int64_t{8} * footer.num_columns()});
    piece_rows_ = piece_rows.value_or(std::clamp<int64_t>(kPieceBytes / bytes / 64 * 64, 1024, 65536));
    reader_->set_batch_size(piece_rows_);
    for (const auto& field : reader_->manifest().schema_fields) {
      columns_.push_back({field.field->name(), TypeFromArrow(*field.field->type())});
    }
    return OkStatus();
  }

  std::unique_ptr<parquet::arrow::FileReader> reader_;
};

}  // namespace

Result<std::shared_ptr<ParquetFile>> ParquetFile::Open(const std::string& path, std::optional<int64_t> piece_rows) {
  auto file = std::make_shared<ArrowFile>();
  const std::string who = FileText(path) + ": not a readable Parquet file";
  LOCKSTEP_RETURN_IF_ERROR(Guard(who, [&] { return file->Init(path, piece_rows); }));
  return std::shared_ptr<ParquetFile>(std::move(file));
}

Status ParquetFile::Check(const std::vector<Field>& fields) const {
  for (const Field& field : fields) {
    const FileColumn* found = nullptr;
    for (const FileColumn& column : columns_) {
      if (column.name != field.name) continue;
      if (found != nullptr) return InvalidArgument(FileText(path_) + " has more than one column '" + field.name + "'");
      found = &column;
    }
    if (found == nullptr) {
      if (field.default_value) continue;
      std::string names;
      for (const FileColumn& column : columns_) names += (names.empty() ? "" : ", ") + column.name;
      return NotFound(FileText(path_) + " has no column '" + field.name + "': it has " + names);
    }
    const std::string who = ColumnText(path_, field.name);
    if (!found->type.ok()) return found->type.status().WithPrefix(who + ": ");
    if (!Fits(*found->type, field.type)) {
      return InvalidArgument(who + " is " + found->type->ToString() + ", wanted " + field.type.ToString());
    }
  }
  return OkStatus();
}

}  // namespace lockstep::columnar
