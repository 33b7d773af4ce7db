#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/columnar/checksums.h"
#include "core/columnar/column.h"
#include "core/columnar/filter.h"
#include "core/columnar/plan.h"

namespace lockstep::columnar {

// What to read and how. All workers of a job have the same, but for plan.partition_index.
struct SourceOptions {
  // Files, folders and patterns: see ExpandPaths.
  std::vector<std::string> paths;

  // Columns of a batch, in this order; at least one.
  std::vector<Field> fields;

  PlanOptions plan;

  // Rows to read; the others count nowhere but for shares, turns of files (PlanOptions) and positions, which are made
  // of the rows of those row groups that may have some by their statistics. Not with PartitionBy::kBatches, whose order
  // is that of all rows.
  Filter filter;

  // Leaves out what cannot be read, instead of failing: rows that are null without a default, or lists of a wrong
  // length; the rest of a row group, from the piece on in which damage shows; files that are no readable ones, which
  // have no rows then. Files that lack a column or have it in another type remain errors, as missing files do. Not with
  // PartitionBy::kBatches.
  bool skip_corrupted = false;

  // The SHA-256 of the files: a file is read whole, once by each Source, before the first of its rows is decoded.
  // None: it is not looked at. A file of which no row is read is not verified, unless its footer says that it has none.
  std::shared_ptr<Checksums> checksums = std::make_shared<Checksums>();

  // Leaves out a last batch with fewer than plan.batch_size rows.
  bool drop_remainder = false;

  // Threads that decode. Not given: as many as cores that the process may use.
  std::optional<int64_t> threads;

  // Rows that are decoded at once. Not given: one or more batches, by the width of a file's rows. Tests set it to have
  // borders where they want them.
  std::optional<int64_t> piece_rows;

  // INVALID_ARGUMENT that names the option, what it is and what it may be.
  Status Validate() const;
};

// What a position in a source belongs to: sources with an equal identity give the same rows in the same order. Fields
// are no part of it, as other columns of the same rows have the same positions.
struct SourceIdentity {
  std::vector<std::string> paths;  // of all files, in their order
  std::vector<int64_t> contents;   // of each: a number that is another where it has other row groups or values
  int64_t order = 0;               // such a number of the share, the batch size and the filter

  // FAILED_PRECONDITION where a position of `saved` is not one of this: says what differs, and of files which.
  Status Check(const SourceIdentity& saved) const;
};

// A set of files that has been looked through: which there are, how many rows each row group has, and that every file
// holds every field. Immutable, so that any number of readers may share it, from any threads. Holds no file open: a
// reader opens files again, and refuses one whose row groups have changed meanwhile.
//
// To be made once for a dataset and kept: reading the footers of thousands of files is what takes time at the start of
// an epoch. See reader.h for an example.
class Source {
 public:
  // A file and how it is cut: wide rows are decoded in smaller pieces.
  struct File {
    // As ExpandPaths gives it.
    std::string path;
    std::vector<int64_t> group_rows;
    // The same, but with 0 for row groups in which no row can pass the filter.
    std::vector<int64_t> planned_rows;
    int64_t piece_rows;  // see SourceOptions
    int64_t rows_ahead;  // that are decoded before they are asked for
    int64_t contents;    // see ParquetFile; 0 where it is unreadable
    Status unreadable;   // with skip_corrupted: why it has no rows
  };

  // Reads all footers (several at once), so that a file that lacks a column is an error now and not after hours.
  // The error is the first file's, in order.
  static Result<std::shared_ptr<const Source>> Make(SourceOptions options);

  const SourceOptions& options() const { return options_; }
  const std::vector<File>& files() const { return files_; }

  // Threads that a reader decodes with, and in which Make reads footers.
  int64_t threads() const;

  // This worker's share, from its beginning: a copy for each pass.
  RowPlan NewPlan() const { return plan_; }

  // Batches of this worker's share in one pass, a last one that is short included, unless drop_remainder leaves it out.
  // With a filter or skip_corrupted that is known at the end alone.
  std::optional<int64_t> batches() const;

  // Positions in this source are good for those with an equal identity.
  SourceIdentity identity() const;

 private:
  Source() = default;

  SourceOptions options_;
  std::vector<File> files_;
  RowPlan plan_;
};

}  // namespace lockstep::columnar
