// Reads Parquet through Arrow. Each column stream has a FileReader of its own, over one shared file descriptor and one
// shared footer. Arrow's readers are not thread-safe, and the speed comes from decoding columns in parallel. The reader
// sees a subset of the footer with only the stream's row groups. So Arrow's "whole column" is exactly the wanted run of
// rows, and other row groups are never opened.
//
// Arrow's own threads and its pre-buffering are off. Its threads would decode the columns of one batch together and
// then wait, without regard to the decoder's limits. Pre-buffering would hold the compressed bytes of a whole row group
// of all columns in memory at once.
//
// Errors: Arrow reports most failures by Status, and Parquet's lower layer by exceptions. A damaged file can cause
// both, so all code that handles a file's content runs inside of Guard.
#include "core/columnar/arrow/parquet_file.h"

#include <arrow/array.h>
#include <arrow/chunked_array.h>
#include <arrow/dataset/file_parquet.h>
#include <arrow/io/interfaces.h>
#include <arrow/type.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>
#include <parquet/statistics.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "core/columnar/arrow/convert.h"
#include "core/columnar/arrow/filesystem.h"
#include "core/columnar/arrow/stream.h"
#include "core/columnar/column/fingerprint.h"
#include "core/columnar/files/files.h"

namespace lockstep::columnar {
namespace {

// A file through Arrow's reader. Several threads may call OpenRows: ReadableFile reads at positions, without a shared
// cursor, and the footer is only read.
class ArrowParquetFile : public ArrowFile {
 public:
  // Public for OpenWithArrow, which runs it inside of Guard.
  Status Init(const std::string& path, std::shared_ptr<arrow::io::RandomAccessFile> file) {
    path_ = path;
    file_ = std::move(file);
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<parquet::arrow::FileReader> reader, NewReader(nullptr));
    footer_ = reader->parquet_reader()->metadata();
    manifest_ = reader->manifest();
    return ReadFooter();
  }

  int64_t contents() const override { return contents_; }

  // Only a column of a type that cannot be read has several leaves.
  Result<int64_t> RowBytes(const std::vector<Field>& fields) const override {
    return Guard(FileText(path_), [&]() -> Result<int64_t> {
      std::map<std::string, int> leaves;
      for (int leaf = 0; leaf < footer_->num_columns(); ++leaf) {
        leaves[footer_->schema()->GetColumnRoot(leaf)->name()] = leaf;
      }
      int64_t bytes = 0;
      for (const Field& field : fields) {
        const auto leaf = leaves.find(field.name);
        // Sizes in the footer count encoded values, which may be far smaller. A missing column has no size there.
        bytes += std::max<int64_t>(8, leaf == leaves.end() ? 0 : LeafBytes(leaf->second));
      }
      return std::max<int64_t>(1, bytes);
    });
  }

 protected:
  Result<NextRows> OpenRows(const std::vector<int>& groups, int column) const override {
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<parquet::arrow::FileReader> reader, NewReader(footer_->Subset(groups)));
    std::unique_ptr<parquet::arrow::ColumnReader> rows;
    const auto status = reader->GetColumn(column, &rows);
    if (!status.ok()) return FromArrow(status).WithPrefix(ColumnText(path_, columns_[column].name) + ": ");
    // The reader outlives the column.
    return NextRows([file = std::shared_ptr(std::move(reader)), rows = std::shared_ptr(std::move(rows))](
                        int64_t count) -> arrow::Result<std::shared_ptr<arrow::ChunkedArray>> {
      std::shared_ptr<arrow::ChunkedArray> chunks;
      ARROW_RETURN_NOT_OK(rows->NextBatch(count, &chunks));
      return chunks;
    });
  }

  // Returns what Arrow's datasets derive from the statistics. Only columns that are not lists or structs have
  // statistics.
  Result<arrow::compute::Expression> Guarantee(int group, const std::vector<int>& columns) const override {
    std::vector<arrow::compute::Expression> known;
    const auto metadata = footer_->RowGroup(group);
    for (int column : columns) {
      const parquet::arrow::SchemaField& field = manifest_.schema_fields[column];
      if (!field.is_leaf()) continue;
      const auto statistics = metadata->ColumnChunk(field.column_index)->statistics();
      if (statistics == nullptr) continue;
      auto expression = arrow::dataset::ParquetFileFragment::EvaluateStatisticsAsExpression(*field.field, *statistics);
      if (expression) known.push_back(*std::move(expression));
    }
    return arrow::compute::and_(known);
  }

 private:
  // Returns the error for a file that is no Parquet file, or whose footer is damaged.
  Status NotReadable(const arrow::Status& status) const {
    return FromArrow(status).WithPrefix(FileText(path_) + ": not a readable Parquet file: ");
  }

  // Returns a reader with the given footer; without one it reads the file's footer.
  Result<std::unique_ptr<parquet::arrow::FileReader>> NewReader(std::shared_ptr<parquet::FileMetaData> footer) const {
    parquet::ReaderProperties properties = parquet::default_reader_properties();
    // If a writer stored checksums, they turn silent damage into an error.
    properties.set_page_checksum_verification(true);
    parquet::ArrowReaderProperties arrow_properties;
    arrow_properties.set_use_threads(false);
    arrow_properties.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    if (auto status = builder.Open(file_, properties, std::move(footer)); !status.ok()) return NotReadable(status);
    builder.properties(arrow_properties);
    auto reader = builder.Build();
    if (!reader.ok()) return NotReadable(reader.status());
    return *std::move(reader);
  }

  // Returns the bytes per row of one leaf's values, in the row group where its rows are widest. Sizes of a damaged
  // footer are limited, so that they can be added.
  int64_t LeafBytes(int leaf) const {
    constexpr int64_t kMost = int64_t{1} << 40;
    int64_t bytes = 0;
    for (int group = 0; group < footer_->num_row_groups(); ++group) {
      if (group_rows_[group] == 0) continue;
      const int64_t all = footer_->RowGroup(group)->ColumnChunk(leaf)->total_uncompressed_size();
      bytes = std::max(bytes, std::min(kMost, all / group_rows_[group]));
    }
    return bytes;
  }

  // Keeps the footer's numbers after checking them: sizes are used to allocate and to divide, so a damaged one must not
  // pass.
  Status ReadFooter() {
    int64_t rows = 0;
    Fingerprint contents;
    for (int group = 0; group < footer_->num_row_groups(); ++group) {
      const auto metadata = footer_->RowGroup(group);
      if (metadata->num_rows() < 0 || __builtin_add_overflow(rows, metadata->num_rows(), &rows)) {
        return DataLoss(FileText(path_) + ": row group " + std::to_string(group) + " has " +
                        std::to_string(metadata->num_rows()) + " rows");
      }
      group_rows_.push_back(metadata->num_rows());
      AddContents(*metadata, contents);
    }
    contents_ = contents.value();
    if (rows != footer_->num_rows()) {
      return DataLoss(FileText(path_) + ": the row groups have " + std::to_string(rows) + " rows, the footer says " +
                      std::to_string(footer_->num_rows()));
    }
    arrow::FieldVector fields;
    for (const auto& field : manifest_.schema_fields) fields.push_back(field.field);
    SetSchema(arrow::schema(std::move(fields)));
    return OkStatus();
  }

  // Statistics are hashed in their stored form, because Arrow's interpretation may change with its version.
  static void AddContents(const parquet::RowGroupMetaData& group, Fingerprint& contents) {
    contents.Add(group.num_rows());
    for (int column = 0; column < group.num_columns(); ++column) {
      const auto chunk = group.ColumnChunk(column);
      contents.Add(chunk->data_page_offset());
      contents.Add(chunk->total_compressed_size());
      contents.Add(chunk->total_uncompressed_size());
      const auto statistics = chunk->encoded_statistics();
      if (statistics == nullptr) continue;
      contents.Add(statistics->min());
      contents.Add(statistics->max());
      contents.Add(statistics->null_count);
    }
  }

  std::shared_ptr<arrow::io::RandomAccessFile> file_;
  std::shared_ptr<parquet::FileMetaData> footer_;
  int64_t contents_ = 0;
  parquet::arrow::SchemaManifest manifest_;
};

// Finds errors that Arrow would report as an I/O error with a text of its own, so that each has its code. Pipes and
// devices are left to Arrow.
Status CheckReadable(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return NotFound(FileText(path) + " does not exist");
  if (error) return Internal(FileText(path) + ": " + error.message());
  if (status.type() == fs::file_type::directory) return InvalidArgument(FileText(path) + " is a folder");
  if (fs::is_regular_file(status) && fs::file_size(path, error) == 0) {
    return DataLoss(FileText(path) + ": not a readable Parquet file: it is empty (0 bytes)");
  }
  return OkStatus();
}

}  // namespace

Result<std::shared_ptr<ParquetFile>> OpenWithArrow(const std::string& path) {
  return Guard(FileText(path) + ": not a readable Parquet file", [&]() -> Result<std::shared_ptr<ParquetFile>> {
    if (!IsRemote(path)) LOCKSTEP_RETURN_IF_ERROR(CheckReadable(path));
    LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<arrow::io::RandomAccessFile> input, OpenFile(path));
    // The first bytes tell the formats apart. Parquet's reader reports a file of neither format.
    char magic[3] = {};
    const auto read = input->ReadAt(0, sizeof(magic), magic);
    if (read.ok() && std::string_view(magic, sizeof(magic)) == "ORC") return OpenOrc(path, std::move(input));
    auto file = std::make_shared<ArrowParquetFile>();
    LOCKSTEP_RETURN_IF_ERROR(file->Init(path, std::move(input)));
    return std::shared_ptr<ParquetFile>(std::move(file));
  });
}

}  // namespace lockstep::columnar
