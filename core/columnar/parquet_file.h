#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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

// The rows of one column of one row group, from first to last. Thread-compatible; different streams of a file may be
// read by different threads at once. Keeps its file open.
class ColumnStream {
 public:
  virtual ~ColumnStream() = default;

  // The next `rows` rows. Asking for more than the row group has is DATA_LOSS: its footer promised them.
  virtual Result<Column> Read(int64_t rows) = 0;

  // Passes over the next `rows` rows.
  virtual Status Skip(int64_t rows) = 0;
};

// An open Parquet file. Every error's message begins with the file's name, and with the column's where there is one.
// Nothing of Arrow is thrown or ends the process, whatever the file holds. Thread-safe.
class ParquetFile : public std::enable_shared_from_this<ParquetFile> {
 public:
  // Reads the footer. `piece_rows` is how many rows its streams decode at once; where it is not given, as many as make
  // a piece of about `kPieceBytes` in memory.
  static Result<std::shared_ptr<ParquetFile>> Open(const std::string& path,
                                                   std::optional<int64_t> piece_rows = std::nullopt);

  virtual ~ParquetFile() = default;

  const std::string& path() const { return path_; }
  const std::vector<FileColumn>& columns() const { return columns_; }
  const std::vector<int64_t>& group_rows() const { return group_rows_; }
  int64_t piece_rows() const { return piece_rows_; }

  // Whether each field can be read from this file: that it is there (or has a default) under this name once, in the
  // type that is wanted. NOT_FOUND names the columns that there are, INVALID_ARGUMENT both types.
  Status Check(const std::vector<Field>& fields) const;

  // `field` must have passed Check.
  virtual Result<std::unique_ptr<ColumnStream>> OpenColumn(int group, const Field& field) = 0;

 protected:
  // Pieces small enough that a few in flight don't matter, large enough that the cost of starting one doesn't.
  static constexpr int64_t kPieceBytes = 32 << 20;

  std::string path_;
  std::vector<FileColumn> columns_;
  std::vector<int64_t> group_rows_;
  int64_t piece_rows_ = 0;
};

}  // namespace lockstep::columnar
