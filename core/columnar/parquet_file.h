#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/columnar/column.h"

namespace lockstep::columnar {

// A column as a file stores it.
struct FileColumn {
  std::string name;

  // In what form it is read, or why it has none.
  Result<ColumnType> type;
};

// One column of some row groups of a file, as one run of rows from first to last. Thread-compatible; different streams
// of a file may be read by different threads at once. Keeps its file open.
class ColumnStream {
 public:
  virtual ~ColumnStream() = default;

  // The next `rows` rows, across the borders of row groups. Asking for more than there are is DATA_LOSS: the footer
  // promised them.
  virtual Result<Column> Read(int64_t rows) = 0;

  // Passes over the next `rows` rows.
  virtual Status Skip(int64_t rows) = 0;
};

// An open Parquet file. Every error's message begins with the file's name, and with the column's where there is one.
// Nothing of Arrow's is thrown or ends the process, whatever the file holds. Thread-safe.
class ParquetFile {
 public:
  // Reads the footer.
  static Result<std::shared_ptr<ParquetFile>> Open(const std::string& path);

  virtual ~ParquetFile() = default;

  const std::string& path() const { return path_; }
  const std::vector<FileColumn>& columns() const { return columns_; }
  const std::vector<int64_t>& group_rows() const { return group_rows_; }

  // About how many bytes a row of all columns takes in memory.
  int64_t row_bytes() const { return row_bytes_; }

  // Whether each field can be read from this file: that it is there (or has a default) under this name once, in the
  // type that is wanted. NOT_FOUND names the columns that there are, INVALID_ARGUMENT both types.
  Status Check(const std::vector<Field>& fields) const;

  // The column of `groups`, one after the other. `field` must have passed Check.
  virtual Result<std::unique_ptr<ColumnStream>> OpenColumn(const std::vector<int>& groups, const Field& field) = 0;

 protected:
  std::string path_;
  std::vector<FileColumn> columns_;
  std::vector<int64_t> group_rows_;
  int64_t row_bytes_ = 1;
};

}  // namespace lockstep::columnar
