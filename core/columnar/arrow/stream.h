#pragma once

#include <arrow/array.h>
#include <arrow/chunked_array.h>
#include <arrow/io/interfaces.h>
#include <arrow/result.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "core/columnar/arrow/convert.h"
#include "core/columnar/arrow/filter.h"
#include "core/columnar/column/parquet_file.h"

// The common part of the formats that Arrow reads. Only stream.cc, parquet_file.cc and orc_file.cc include it.
namespace lockstep::columnar {

// Runs `call`, which returns our Status or Result. Exceptions of Arrow or the standard library become a Status.
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

// The number of rows that Skip decodes at once. It bounds the memory; kMostPieceRows in source.cc has the same value.
inline constexpr int64_t kSkipRows = 65536;

// Returns the next rows of a column, at most `rows`; null or no rows at the end. Owns the reader.
using NextRows = std::function<arrow::Result<std::shared_ptr<arrow::ChunkedArray>>(int64_t rows)>;

// A column that Arrow decodes, with a count of the rows that its reader has returned.
class ArrowRows {
 public:
  // A run of row numbers: rows of the stream from `begin` on are rows of the file from `file_row` on.
  struct Run {
    int64_t begin;
    int64_t file_row;
  };

  ArrowRows(std::string who, std::vector<Run> runs, NextRows next)
      : who_(std::move(who)), runs_(std::move(runs)), next_(std::move(next)) {}

  const std::string& who() const { return who_; }

  // Passes the next `rows` rows to `use`, in one or more arrays of at most `at_once` rows. Arrow returns several chunks
  // if a column's strings have more than 2 GB. A column that ends before the footer's number of rows is a damaged file.
  // Without the check for it the loop would never end.
  template <typename Use>
  Status Take(int64_t rows, int64_t at_once, const Use& use) {
    return Guard(who_, [&]() -> Status {
      while (rows > 0) {
        const auto next = next_(std::min(rows, at_once));
        if (!next.ok()) return FromArrow(next.status()).WithPrefix(who_ + ": ");
        const std::shared_ptr<arrow::ChunkedArray>& chunks = *next;
        if (chunks == nullptr || chunks->length() == 0 || chunks->length() > rows) {
          return DataLoss(who_ + ": the data ends at row " + std::to_string(FileRow(0)) + " of the file, " +
                          std::to_string(rows) + " rows before the end that the footer gives");
        }
        for (const std::shared_ptr<arrow::Array>& array : chunks->chunks()) {
          if (array->length() == 0) continue;
          LOCKSTEP_RETURN_IF_ERROR(use(array));
          rows -= array->length();
          position_ += array->length();
        }
      }
      return OkStatus();
    });
  }

  Status Skip(int64_t rows) {
    return Take(rows, kSkipRows, [](const std::shared_ptr<arrow::Array>&) { return OkStatus(); });
  }

  // Returns the number, in the file, of the row `offset` after the position. A row group without rows begins where the
  // next one does, so the search takes the last run that begins at or before the row.
  int64_t FileRow(int64_t offset) const {
    const int64_t row = position_ + offset;
    auto next = std::upper_bound(runs_.begin(), runs_.end(), row,
                                 [](int64_t value, const Run& run) { return value < run.begin; });
    return (next - 1)->file_row + row - (next - 1)->begin;
  }

 private:
  const std::string who_;
  const std::vector<Run> runs_;  // for each row group
  const NextRows next_;
  int64_t position_ = 0;  // rows read
};

// The common part of the formats. They differ in how the footer is read and in what returns a column's rows.
class ArrowFile : public ParquetFile {
 public:
  Result<std::unique_ptr<ColumnStream>> OpenColumn(const std::vector<int>& groups, const Field& field) final;
  Result<std::vector<bool>> GroupsThatMayPass(const Filter& filter, const std::vector<Field>& fields) const final;
  Result<std::unique_ptr<RowSelector>> OpenSelector(const std::vector<int>& groups, const Filter& filter) final;

 protected:
  // Keeps the footer's columns.
  void SetSchema(std::shared_ptr<arrow::Schema> schema);

  // Returns the rows of column number `column` of the schema in `groups`. May throw.
  virtual Result<NextRows> OpenRows(const std::vector<int>& groups, int column) const = 0;

  // Returns what the footer knows about the values of `columns` in a row group, or `true` if it knows nothing. May
  // throw.
  virtual Result<arrow::compute::Expression> Guarantee(int group, const std::vector<int>& columns) const = 0;

 private:
  Result<ArrowRows> RowsOf(const std::vector<int>& groups, int column) const;

  std::shared_ptr<arrow::Schema> schema_;
};

// Opens an ORC file; OpenWithArrow has checked that it is one.
Result<std::shared_ptr<ParquetFile>> OpenOrc(const std::string& path,
                                             std::shared_ptr<arrow::io::RandomAccessFile> file);

}  // namespace lockstep::columnar
