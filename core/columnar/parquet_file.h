#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/columnar/column.h"
#include "core/columnar/filter.h"

namespace lockstep::columnar {

// A file as columns to choose from, and a column of it as a stream of rows. Nothing of Arrow's or Parquet's appears
// here: arrow_parquet_file.cc and orc_file.cc read the formats.
//
//   LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<ParquetFile> file, ParquetFile::Open("day.parquet"));
//   LOCKSTEP_RETURN_IF_ERROR(file->Check({field}));
//   LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<ColumnStream> stream, file->OpenColumn({0, 1}, field));
//   LOCKSTEP_RETURN_IF_ERROR(stream->Skip(100));
//   LOCKSTEP_ASSIGN_OR_RETURN(Column column, stream->Read(50));   // rows [100, 150) of row groups 0 and 1
//
// Status codes of all calls:
//   NOT_FOUND           no such file, or no such column and no default for it
//   INVALID_ARGUMENT    a folder, a column of another type, two columns of one name
//   UNIMPLEMENTED       a type without a form as a tensor, or an encoding that Arrow does not read
//   DATA_LOSS           damaged or truncated, or a null without a default
//   RESOURCE_EXHAUSTED  no memory
// A column as a file stores it.
struct FileColumn {
  std::string name;

  // In what form it is read, or why it has none.
  Result<ColumnType> type;
};

// How messages name a file and a column of it.
inline std::string FileText(const std::string& path) { return "file '" + path + "'"; }
inline std::string ColumnText(const std::string& path, const std::string& name) {
  return FileText(path) + " column '" + name + "'";
}

// Whether it says that what was read is damaged, or not what it should be; and not that there was no memory, or that
// somebody wanted no more.
inline bool IsCorruption(const Status& status) {
  return status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kInvalidArgument;
}

// Rows that are left out because they cannot be read.
struct Refused {
  std::vector<int64_t> rows;  // positions among those that were asked for, ascending
  Status first;               // why the first of them

  void Add(int64_t begin, int64_t end, const Status& status) {
    if (rows.empty()) first = status;
    for (int64_t row = begin; row < end; ++row) rows.push_back(row);
  }
};

// One column of some row groups of a file, as one run of rows from first to last. Forward only: what was read or
// skipped is gone. Thread-compatible; different streams of a file may be read by different threads at once. Keeps its
// file open. After an error its position is unspecified: don't read on.
class ColumnStream {
 public:
  virtual ~ColumnStream() = default;

  // The next `rows` rows, across the borders of row groups; where `kept` is given, those of them alone, by their
  // positions among these rows, ascending. What is wrong with a row that is not kept is no error. Where `refused` is
  // given, rows that are not what the field wants (nulls, lists of another length) are left out and added to it,
  // instead of being an error. Asking for more than there are is DATA_LOSS: the footer promised them.
  virtual Result<Column> Read(int64_t rows, const std::vector<int64_t>* kept, Refused* refused) = 0;
  Result<Column> Read(int64_t rows) { return Read(rows, nullptr, nullptr); }

  // Passes over the next `rows` rows. Costs nearly as much as to read them, since Arrow decodes what it passes over;
  // whole row groups are better left out when the stream is opened.
  virtual Status Skip(int64_t rows) = 0;
};

// Which rows of a run of row groups a filter keeps: as ColumnStream, but that it reads the filter's columns.
class RowSelector {
 public:
  virtual ~RowSelector() = default;

  // Of the next `rows` rows the positions of those that are kept, ascending.
  virtual Result<std::vector<int64_t>> Read(int64_t rows) = 0;
  virtual Status Skip(int64_t rows) = 0;
};

// An open Parquet file. Every error's message begins with the file's name, and with the column's where there is one.
// Nothing of Arrow's is thrown or ends the process, whatever the file holds. Thread-safe.
class ParquetFile {
 public:
  // Reads the footer, and nothing else.
  static Result<std::shared_ptr<ParquetFile>> Open(const std::string& path);

  virtual ~ParquetFile() = default;

  const std::string& path() const { return path_; }
  // The top-level columns, in the file's order; those without a form as a tensor are among them.
  const std::vector<FileColumn>& columns() const { return columns_; }
  // Rows of each row group; some may be 0.
  const std::vector<int64_t>& group_rows() const { return group_rows_; }

  // About how many bytes a row of these columns takes in memory, at least 8 each: for choosing how many to decode at
  // once. `fields` must have passed Check.
  virtual Result<int64_t> RowBytes(const std::vector<Field>& fields) const = 0;

  // Whether each field can be read from this file: that it is there (or has a default) under this name once, in the
  // type that is wanted. NOT_FOUND names the columns that there are, INVALID_ARGUMENT both types.
  Status Check(const std::vector<Field>& fields) const;

  // The column of `groups`, one after the other. `field` must have passed Check.
  virtual Result<std::unique_ptr<ColumnStream>> OpenColumn(const std::vector<int>& groups, const Field& field) = 0;

  // Another number for a file with other values, as far as its footer shows: by the rows, bytes and places of its row
  // groups and columns, and by the least and greatest values where there are statistics. A copy has the same.
  virtual int64_t contents() const = 0;

  // For each row group, whether its statistics leave it possible that rows of it pass the filter. A file whose format
  // has none says yes to all that has rows. NOT_FOUND for a column that is not there, unless one of `fields` gives it a
  // default: it counts as null then. INVALID_ARGUMENT for values that the column's type cannot be compared with.
  virtual Result<std::vector<bool>> GroupsThatMayPass(const Filter& filter, const std::vector<Field>& fields) const = 0;

  // The rows of `groups`, one after the other. `filter` must have passed GroupsThatMayPass.
  virtual Result<std::unique_ptr<RowSelector>> OpenSelector(const std::vector<int>& groups, const Filter& filter) = 0;

 protected:
  // "a, b, c": for messages.
  std::string ColumnNames() const;

  // Filled by Open and constant from then on, which is what makes the class thread-safe.
  std::string path_;
  std::vector<FileColumn> columns_;
  std::vector<int64_t> group_rows_;
};

}  // namespace lockstep::columnar
