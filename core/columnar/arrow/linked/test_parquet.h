#pragma once

#include <arrow/array/builder_binary.h>
#include <arrow/array/builder_nested.h>
#include <arrow/array/builder_primitive.h>
#include <arrow/io/file.h>
#include <arrow/table.h>
#include <arrow/type.h>
#include <gtest/gtest.h>
#include <parquet/arrow/writer.h>
#include <parquet/properties.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// Writes Parquet files for tests.
namespace lockstep::columnar {

inline void WriteTable(const arrow::Table& table, const std::string& path, int64_t group_rows,
                       const std::shared_ptr<parquet::WriterProperties>& properties) {
  auto file = *arrow::io::FileOutputStream::Open(path);
  ASSERT_TRUE(parquet::arrow::WriteTable(table, arrow::default_memory_pool(), file, group_rows, properties).ok());
  ASSERT_TRUE(file->Close().ok());
}

// Writes rows [first, first + rows) of a test's data. Row i holds an id, a list of i % 4 ids and a string, all computed
// from i, so that a batch can be checked without knowing its origin. A number, a ragged column and strings take three
// ways through the decoder.
inline void WriteTestRows(const std::string& path, int64_t first, int64_t rows, int64_t group_rows) {
  arrow::Int64Builder ids;
  auto values = std::make_shared<arrow::Int32Builder>();
  arrow::ListBuilder lists(arrow::default_memory_pool(), values);
  arrow::StringBuilder strings;
  for (int64_t i = first; i < first + rows; ++i) {
    EXPECT_TRUE(ids.Append(i).ok() && lists.Append().ok() && strings.Append("row " + std::to_string(i)).ok());
    for (int64_t j = 0; j < i % 4; ++j) EXPECT_TRUE(values->Append(static_cast<int32_t>(10 * i + j)).ok());
  }
  const auto list_type = arrow::list(arrow::int32());
  const auto table =
      arrow::Table::Make(arrow::schema({{"id", arrow::int64()}, {"list", list_type}, {"text", arrow::utf8()}}),
                         std::vector<std::shared_ptr<arrow::Array>>{*ids.Finish(), *lists.Finish(), *strings.Finish()});
  WriteTable(*table, path, group_rows, parquet::default_writer_properties());
}

// Writes the column 'id' with the values 0, 1, ... in one row group. The values are 8 bytes each: not encoded, not
// compressed and never null. With `checksums` the writer stores checksums of pages.
inline void WriteTestIds(const std::string& path, int64_t rows, bool checksums) {
  arrow::Int64Builder ids;
  for (int64_t i = 0; i < rows; ++i) ASSERT_TRUE(ids.Append(i).ok());
  const auto table = arrow::Table::Make(arrow::schema({arrow::field("id", arrow::int64(), false)}),
                                        std::vector<std::shared_ptr<arrow::Array>>{*ids.Finish()});
  parquet::WriterProperties::Builder properties;
  properties.disable_dictionary()->disable_statistics();
  if (checksums) properties.enable_page_checksum();
  WriteTable(*table, path, rows, properties.build());
}

}  // namespace lockstep::columnar
