#include "core/columnar/arrow/parquet_file.h"

#include <arrow/array/builder_binary.h>
#include <arrow/array/builder_nested.h>
#include <arrow/array/builder_primitive.h>
#include <arrow/io/memory.h>
#include <arrow/table.h>
#include <arrow/type.h>
#include <parquet/arrow/writer.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "core/base/unique_fd.h"
#include "core/fuzzing/fuzz.h"

// Reads a file as the input does: its footer, each column in pieces, and rows that a filter keeps. For any content, the
// result is columns whose positions lie inside of their memory, or an error that names the file.

namespace lockstep::fuzzing {
namespace {

using columnar::Buffer;
using columnar::Column;
using columnar::Field;
using columnar::FileColumn;
using columnar::Filter;
using columnar::FilterTerm;
using columnar::FilterValue;
using columnar::ParquetFile;
using columnar::Refused;
using columnar::ValueType;

constexpr int64_t kRows = 40;
// A damaged footer may promise any number of rows, and runs of equal values take no space in a file.
constexpr int64_t kMostRows = 1000;
constexpr int64_t kAtOnce = 7;

std::shared_ptr<arrow::Table> Rows() {
  arrow::Int64Builder ids;
  arrow::BooleanBuilder flags;
  arrow::StringBuilder texts;
  auto values = std::make_shared<arrow::Int32Builder>();
  arrow::ListBuilder lists(arrow::default_memory_pool(), values);
  auto numbers = std::make_shared<arrow::FloatBuilder>();
  arrow::FixedSizeListBuilder vectors(arrow::default_memory_pool(), numbers, 2);
  bool ok = true;
  for (int64_t i = 0; i < kRows; ++i) {
    ok = ok && ids.Append(i).ok() && lists.Append().ok() && vectors.Append().ok();
    ok = ok && (i % 5 == 0 ? flags.AppendNull() : flags.Append(i % 2 == 0)).ok();
    ok = ok && (i % 7 == 0 ? texts.AppendNull() : texts.Append("row " + std::to_string(i / 3))).ok();
    for (int64_t j = 0; j < i % 4; ++j) ok = ok && values->Append(static_cast<int32_t>(10 * i + j)).ok();
    for (int64_t j = 0; j < 2; ++j) ok = ok && numbers->Append(static_cast<float>(i + j) / 2).ok();
  }
  Require(ok, "memory for a table");
  return arrow::Table::Make(
      arrow::schema({arrow::field("id", arrow::int64(), false), arrow::field("flag", arrow::boolean()),
                     arrow::field("text", arrow::utf8()), arrow::field("list", arrow::list(arrow::int32())),
                     arrow::field("vector", arrow::fixed_size_list(arrow::float32(), 2))}),
      std::vector<std::shared_ptr<arrow::Array>>{*ids.Finish(), *flags.Finish(), *texts.Finish(), *lists.Finish(),
                                                 *vectors.Finish()});
}

std::string FileOf(const std::shared_ptr<parquet::WriterProperties>& properties, int64_t group_rows) {
  auto file = *arrow::io::BufferOutputStream::Create();
  Require(parquet::arrow::WriteTable(*Rows(), arrow::default_memory_pool(), file, group_rows, properties).ok(),
          "a file is written");
  return (*file->Finish())->ToString();
}

// Returns a field with a default, so that decoding continues after a null.
Field FieldOf(const FileColumn& column) {
  columnar::ColumnType type = *column.type;
  if (type.value == ValueType::kNull) type.value = ValueType::kInt64;
  return {column.name, type, std::string(static_cast<size_t>(ValueTypeSize(type.value)), '\0')};
}

// Checks the conditions of every column (column.h), and that all of its memory can be read.
void Check(const Column& column, int64_t rows) {
  Require(column.rows == rows, "as many rows as were asked for");
  int64_t elements = rows;
  for (const Buffer& level : column.splits) {
    const auto* splits = level.as<int64_t>();
    Require(level.bytes == (elements + 1) * 8 && splits[0] == 0, "positions of each element and the end");
    for (int64_t i = 0; i < elements; ++i) Require(splits[i] <= splits[i + 1], "positions that never fall");
    elements = splits[elements];
  }
  Require(column.count == elements * column.width, "as many values as lists span");
  if (column.type == ValueType::kString) {
    const auto* offsets = column.offsets.as<int64_t>();
    Require(column.offsets.bytes == (column.count + 1) * 8 && offsets[0] >= 0, "offsets of each string and the end");
    for (int64_t i = 0; i < column.count; ++i) Require(offsets[i] <= offsets[i + 1], "offsets that never fall");
    Require(offsets[column.count] <= column.values.bytes, "strings inside of their bytes");
  } else {
    Require(column.values.bytes == column.count * ValueTypeSize(column.type), "bytes of each value");
  }
  const volatile auto* bytes = column.values.as<unsigned char>();
  for (int64_t i = 0; i < column.values.bytes; ++i) (void)bytes[i];
}

class Input {
 public:
  explicit Input(std::string_view bytes) : fd_(memfd_create("lockstep_fuzz", MFD_CLOEXEC)) {
    Require(write(fd_.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "a file in memory");
    path_ = "/proc/self/fd/" + std::to_string(fd_.get());
  }

  void Read() {
    const auto opened = columnar::OpenWithArrow(path_);
    if (!Ok(opened.status())) return;
    ParquetFile& file = **opened;
    std::vector<int> groups;
    int64_t rows = 0;
    for (size_t group = 0; group < file.group_rows().size(); ++group) {
      groups.push_back(static_cast<int>(group));
      rows += file.group_rows()[group];
    }
    rows = std::min(rows, kMostRows);
    std::vector<Field> fields;
    for (const FileColumn& column : file.columns()) {
      // A damaged type may be one of lists with any fixed length.
      if (column.type.ok() && column.type->width() <= 1024) fields.push_back(FieldOf(column));
    }
    if (!Ok(file.Check(fields))) return;
    if (const auto bytes = file.RowBytes(fields); Ok(bytes.status())) Require(*bytes > 0, "a row has a size");
    for (const Field& field : fields) ReadColumn(file, groups, rows, field);
    Select(file, groups, rows, fields);
  }

 private:
  bool Ok(const Status& status) const {
    Require(status.ok() || status.message().find(path_) != std::string::npos, "an error names the file");
    return status.ok();
  }

  void ReadColumn(ParquetFile& file, const std::vector<int>& groups, int64_t rows, const Field& field) const {
    const auto stream = file.OpenColumn(groups, field);
    if (!Ok(stream.status())) return;
    for (int64_t done = 0; done < rows; done += kAtOnce) {
      const int64_t count = std::min(kAtOnce, rows - done);
      Refused refused;
      const auto column = (*stream)->Read(count, nullptr, &refused);
      if (!Ok(column.status())) return;
      const auto left_out = static_cast<int64_t>(refused.rows.size());
      if (left_out < count) Check(*column, count - left_out);
    }
  }

  void Select(ParquetFile& file, const std::vector<int>& groups, int64_t rows, const std::vector<Field>& fields) const {
    const Filter filter = {{{"id", FilterTerm::Op::kGreater, {{FilterValue::Kind::kInt64, "17"}}},
                            {"text", FilterTerm::Op::kNotEqual, {{FilterValue::Kind::kString, "row 8"}}}}};
    if (!Ok(file.GroupsThatMayPass(filter, fields).status())) return;
    const auto selector = file.OpenSelector(groups, filter);
    if (!Ok(selector.status())) return;
    for (int64_t done = 0; done < rows; done += kAtOnce) {
      const int64_t count = std::min(kAtOnce, rows - done);
      const auto kept = (*selector)->Read(count);
      if (!Ok(kept.status())) return;
      for (size_t i = 0; i < kept->size(); ++i) {
        const int64_t before = i == 0 ? -1 : (*kept)[i - 1];
        Require(before < (*kept)[i] && (*kept)[i] < count, "positions among the rows, ascending");
      }
    }
  }

  const UniqueFd fd_;
  std::string path_;
};

}  // namespace

std::vector<std::string> Seeds() {
  using Builder = parquet::WriterProperties::Builder;
  return {FileOf(Builder().disable_dictionary()->disable_statistics()->build(), kRows),
          FileOf(Builder().enable_page_checksum()->compression(arrow::Compression::SNAPPY)->build(), 15),
          FileOf(Builder()
                     .data_page_version(parquet::ParquetDataPageVersion::V2)
                     ->compression(arrow::Compression::ZSTD)
                     ->data_pagesize(64)
                     ->build(),
                 25),
          FileOf(Builder()
                     .disable_dictionary()
                     ->encoding("id", parquet::Encoding::DELTA_BINARY_PACKED)
                     ->encoding("text", parquet::Encoding::DELTA_BYTE_ARRAY)
                     ->encoding("vector.list.element", parquet::Encoding::BYTE_STREAM_SPLIT)
                     ->build(),
                 kRows)};
}

int Fuzz(const uint8_t* data, size_t size) {
  Input(Bytes(data, size)).Read();
  return 0;
}

}  // namespace lockstep::fuzzing
