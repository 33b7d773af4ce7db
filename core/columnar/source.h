#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/columnar/checksums.h"
#include "core/columnar/column/column.h"
#include "core/columnar/column/filter.h"
#include "core/columnar/plan.h"

namespace lockstep::columnar {

// The data to read and the way to read it. All workers of a job have the same options, except for plan.partition_index.
struct SourceOptions {
  // Files, folders and patterns, see ExpandPaths.
  std::vector<std::string> paths;

  // Columns of a batch, in this order; at least one.
  std::vector<Field> fields;

  PlanOptions plan;

  // The rows to read. Row groups that have no such row by their statistics are left out. Shares, turns of files
  // (PlanOptions) and positions count all rows of the other row groups. Not allowed with PartitionBy::kBatches, whose
  // order is the order of all rows.
  Filter filter;

  // Leaves out what cannot be read, instead of failing:
  //   - rows with a null without a default, or with a list of a wrong length;
  //   - the rest of a row group from the damaged piece on;
  //   - files whose format or footer is damaged, which then have no rows.
  //
  // A missing file remains an error. A file that lacks a column, or has it in another type, also remains one. Not
  // allowed with PartitionBy::kBatches.
  bool skip_corrupted = false;

  // The SHA-256 of the files. Each Source reads a file whole once, before the first of its rows is decoded. Without
  // checksums files are not verified. A file of which no row is read is not verified, unless its footer says that it
  // has no rows.
  std::shared_ptr<Checksums> checksums = std::make_shared<Checksums>();

  // Leaves out a last batch with fewer than plan.batch_size rows.
  bool drop_remainder = false;

  // The number of decoding threads. Default: the number of cores that the process may use.
  std::optional<int64_t> threads;

  // The rows of a piece. Default: one or more batches, by the width of a file's rows. Tests set it to place the
  // borders.
  std::optional<int64_t> piece_rows;

  // Returns INVALID_ARGUMENT with the option's name, its value and the allowed values.
  Status Validate() const;
};

// The identity that a position belongs to: sources with equal identities give the same rows in the same order. Fields
// are not part of it, because other columns of the same rows have the same positions.
struct SourceIdentity {
  std::vector<std::string> paths;  // all files, in their order
  std::vector<int64_t> contents;   // of each file, a hash of its row groups and values
  int64_t order = 0;               // a hash of the share, the batch size and the filter

  // Returns FAILED_PRECONDITION if a position of `saved` does not fit this source. The message names the difference.
  Status Check(const SourceIdentity& saved) const;
};

// A set of files whose footers were read: it knows the files and the rows of each row group, and that every file has
// every field. Immutable, so that any number of readers on any threads may share it. It holds no file open. A reader
// opens files again, and refuses one whose row groups have changed meanwhile.
//
// Make it once for a dataset and keep it: at the start of an epoch, reading the footers of thousands of files takes
// most of the time. See reader.h for an example.
class Source {
 public:
  // A file and its division into pieces: wide rows are decoded in smaller pieces.
  struct File {
    // The name that ExpandPaths returned.
    std::string path;
    std::vector<int64_t> group_rows;
    // Like group_rows, but 0 for row groups in which no row can pass the filter.
    std::vector<int64_t> planned_rows;
    int64_t piece_rows;               // see SourceOptions
    int64_t rows_ahead;               // rows that are decoded ahead
    std::optional<int64_t> contents;  // see ParquetFile; not of an unreadable file
    Status unreadable;                // with skip_corrupted: the error because of which it has no rows
    // For each field FileColumn::ValueText; empty if the file lacks the column. An unreadable file has none.
    std::vector<std::string> value_texts;
  };

  // Reads all footers, several at once, so that a missing column is an error now and not after hours. Returns the error
  // of the first file that has one.
  static Result<std::shared_ptr<const Source>> Make(SourceOptions options);

  const SourceOptions& options() const { return options_; }
  const std::vector<File>& files() const { return files_; }

  // Returns the number of threads with which a reader decodes, and Make reads footers.
  int64_t threads() const;

  // Returns this worker's share from its beginning; each pass takes a copy.
  RowPlan NewPlan() const { return plan_; }

  // Returns the number of batches of this worker's share in one pass, including a short last one, unless drop_remainder
  // leaves it out. With a filter or skip_corrupted, the number is known only at the end.
  std::optional<int64_t> batches() const;

  // Returns the identity: positions in this source are valid in sources with an equal one.
  SourceIdentity identity() const;

 private:
  Source() = default;

  SourceOptions options_;
  std::vector<File> files_;
  RowPlan plan_;
};

}  // namespace lockstep::columnar
