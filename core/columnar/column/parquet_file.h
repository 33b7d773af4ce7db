#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/columnar/column/column.h"
#include "core/columnar/column/filter.h"

namespace lockstep::columnar {

// Files as columns to choose from, and a column as a stream of rows. This is the interface.
// core/columnar/arrow reads the formats, and OpenParquetFile (files/files.h) opens a file.
// ```cpp
// LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<ParquetFile> file, OpenParquetFile("day.parquet"));
// LOCKSTEP_RETURN_IF_ERROR(file->Check({field}));
// LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<ColumnStream> stream, file->OpenColumn({0, 1}, field));
// LOCKSTEP_RETURN_IF_ERROR(stream->Skip(100));
// LOCKSTEP_ASSIGN_OR_RETURN(Column column, stream->Read(50));   // rows [100, 150) of row groups 0 and 1
// ```
// Status codes of all calls:
// ```
// NOT_FOUND           no such file, or no such column and no default for it
// INVALID_ARGUMENT    a folder, a column of another type, two columns of one name
// UNIMPLEMENTED       a type without a form as a tensor, or an encoding that Arrow does not read
// DATA_LOSS           damaged or truncated, or a null without a default
// RESOURCE_EXHAUSTED  no memory
// ```

// A column as a file stores it.
struct FileColumn {
  std::string name;

  // The form in which it is read, or the reason why it cannot be read.
  Result<ColumnType> type;

  // The file's type of the innermost values if they are numbers with a unit: "timestamp[us]", "date32[day]". Otherwise
  // empty. Columns of one ColumnType with different units must not be mixed.
  std::string unit;

  // Returns the unit of the values, or their type if they have no unit. Columns of several files may be mixed if this
  // text is the same. It is empty if all values are null. `type` must not be an error.
  std::string ValueText() const {
    if (!unit.empty()) return unit;
    return type->value == ValueType::kNull ? "" : std::string(ValueTypeName(type->value));
  }
};

// Return the names of a file and of its column for messages.
inline std::string FileText(const std::string& path) { return "file '" + path + "'"; }
inline std::string ColumnText(const std::string& path, const std::string& name) {
  return FileText(path) + " column '" + name + "'";
}

// Returns whether the status says that the data is damaged or not as expected, in contrast to a lack of memory or a
// cancellation.
inline bool IsCorruption(const Status& status) {
  return status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kInvalidArgument;
}

// Rows that are left out because they cannot be read.
struct Refused {
  std::vector<int64_t> rows;  // positions among the requested rows, ascending
  Status first;               // the error of the first one

  void Add(int64_t begin, int64_t end, const Status& status) {
    if (rows.empty()) first = status;
    for (int64_t row = begin; row < end; ++row) rows.push_back(row);
  }
};

// One column of some row groups of a file, as one run of rows. It only moves forward: rows that were read or skipped
// cannot be read again. Thread-compatible; different threads may read different streams of a file at once. Keeps its
// file open. After an error its position is undefined: do not read further.
class ColumnStream {
 public:
  virtual ~ColumnStream() = default;

  // Reads the next `rows` rows, across row groups. With `kept`, reads only the rows at these positions among them,
  // ascending; an error in a row that is not kept is ignored. With `refused`, rows that do not fit the field (nulls,
  // lists of another length) are left out and added to it, instead of being an error. DATA_LOSS if there are fewer
  // rows, because the footer promised them.
  virtual Result<Column> Read(int64_t rows, const std::vector<int64_t>* kept, Refused* refused) = 0;
  Result<Column> Read(int64_t rows) { return Read(rows, nullptr, nullptr); }

  // Passes over the next `rows` rows. It costs nearly as much as reading them, because Arrow decodes them. To leave out
  // a whole row group, open the stream without it.
  virtual Status Skip(int64_t rows) = 0;
};

// Finds the rows of a run of row groups that a filter keeps. It works like ColumnStream, but reads the filter's
// columns.
class RowSelector {
 public:
  virtual ~RowSelector() = default;

  // Returns the positions of the kept rows among the next `rows` rows, ascending.
  virtual Result<std::vector<int64_t>> Read(int64_t rows) = 0;
  virtual Status Skip(int64_t rows) = 0;
};

// An open file. Every error's message begins with the file's name, and with the column's if there is one. No exception
// of Arrow gets out, and no content of a file ends the process. Thread-safe.
class ParquetFile {
 public:
  virtual ~ParquetFile() = default;

  const std::string& path() const { return path_; }
  // Returns the top-level columns in the file's order, including those without a form as a tensor.
  const std::vector<FileColumn>& columns() const { return columns_; }
  // Returns the number of rows of each row group, which may be 0.
  const std::vector<int64_t>& group_rows() const { return group_rows_; }

  // Returns an estimate of the bytes that a row of these columns takes in memory, at least 8 each. It is used to choose
  // how many rows are decoded at once. `fields` must have passed Check.
  virtual Result<int64_t> RowBytes(const std::vector<Field>& fields) const = 0;

  // Checks that each field can be read from this file: that a column of this name exists once (or has a default) and
  // has the wanted type. A column of type null has every type, like a column that is missing. NOT_FOUND names the
  // existing columns, INVALID_ARGUMENT names both types.
  Status Check(const std::vector<Field>& fields) const;

  // Opens the column of `groups`, one group after the other. `field` must have passed Check.
  virtual Result<std::unique_ptr<ColumnStream>> OpenColumn(const std::vector<int>& groups, const Field& field) = 0;

  // Returns a hash of the contents, as far as the footer shows them: the rows, bytes and offsets of row groups and
  // columns, and the least and greatest values if there are statistics. A copy of the file has the same hash.
  virtual int64_t contents() const = 0;

  // Returns for each row group whether rows of it may pass the filter, judged by its statistics. In a format without
  // statistics that is every group with rows. NOT_FOUND for a missing column, unless one of `fields` gives it a
  // default: it then counts as null. INVALID_ARGUMENT for values that cannot be compared with the column's type.
  virtual Result<std::vector<bool>> GroupsThatMayPass(const Filter& filter, const std::vector<Field>& fields) const = 0;

  // Opens the rows of `groups`, one group after the other. `filter` must have passed GroupsThatMayPass.
  virtual Result<std::unique_ptr<RowSelector>> OpenSelector(const std::vector<int>& groups, const Filter& filter) = 0;

  // Returns the column of this name, the first one if there are several; null if there is none.
  const FileColumn* Find(const std::string& name) const;

 protected:
  // Returns "a, b, c" for messages.
  std::string ColumnNames() const;

  // Set when the file is opened and constant afterwards, which makes the class thread-safe.
  std::string path_;
  std::vector<FileColumn> columns_;
  std::vector<int64_t> group_rows_;
};

}  // namespace lockstep::columnar
