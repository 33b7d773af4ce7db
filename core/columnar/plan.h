#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/status.h"

namespace lockstep::columnar {

// How the rows of all files are dealt out to the workers. Each way gives every row to exactly one worker.
// Which rows a worker reads, and in which order: decided before anything is read, from the numbers of rows in the
// footers. Every worker works out the shares of all by the same rules, so that they need not talk; what makes this safe
// is that all see the same list of files (ExpandPaths) and the same footers.
//
//   two row groups of 5 rows, 2 workers, batch 2        worker 0          worker 1
//   kRows        contiguous halves                      0 1 | 2 3 | 4     5 6 | 7 8 | 9
//   kRowGroups   group by group                         0 1 | 2 3 | 4     5 6 | 7 8 | 9
//   kBatches     step by step, 8 and 9 divided          0 1 | 4 5 | 8     2 3 | 6 7 | 9
enum class PartitionBy : uint8_t {
  // Contiguous shares that differ by one row at most. A row group on a border is decoded by both its neighbours.
  kRows,
  // Whole row groups, each to the worker with the fewest rows so far: shares differ by at most one row group's rows,
  // and nothing is decoded twice.
  kRowGroups,
  // Batch by batch in turn: step s of W workers with batch B reads the rows that step s of one worker with batch W * B
  // reads. Every worker decodes every row group. The last step's rows are divided evenly.
  kBatches,
};

// A worker's part of the data and the order in which it is read. The same on all workers but for partition_index.
struct PlanOptions {
  PartitionBy partition_by = PartitionBy::kRows;
  // Workers among which the rows are shared, at least 1, and which of them this is, from 0.
  int64_t partition_count = 1;
  int64_t partition_index = 0;

  // Rows of a batch, at least 1. Counts for the order of rows with kBatches and with several files in turn.
  int64_t batch_size = 1;

  // Reads this many files in turn, `sequential_batches` batches' rows from each; a file that ends gives its place to
  // the next. 1: one file after the other. More than 1 is refused with kBatches, which keeps the order of the files.
  int64_t parallel_files = 1;
  int64_t sequential_batches = 1;

  // INVALID_ARGUMENT that names the option, what it is and what it may be.
  Status Validate() const;
};

// Rows [first, first + rows) of a row group: a piece of the plan, as long as rows go on in one row group, one turn and,
// with kBatches, one batch.
struct RowRange {
  int file = 0;
  int group = 0;
  int64_t first = 0;
  int64_t rows = 0;
  // No later range touches this file.
  bool last_of_file = false;

  friend bool operator==(const RowRange&, const RowRange&) = default;
};

// The sequence of row ranges that one worker reads. It depends on the row groups' sizes and the options alone, so that
// it is the same on every machine. A file's ranges come in ascending order. Cheap to copy: a copy goes on from where
// the original stands. Thread-compatible.
//
//   LOCKSTEP_ASSIGN_OR_RETURN(RowPlan plan, RowPlan::Make({{100, 50}, {70}}, options));   // two files
//   plan.Skip(position);
//   const auto groups = plan.GroupsLeft();             // what has to be opened
//   while (auto range = plan.Next()) ...
class RowPlan {
 public:
  // A plan without rows.
  RowPlan() = default;

  // `group_rows[f][g]`: rows of group g of file f, 0 or more. INVALID_ARGUMENT for options (see Validate) and
  // for a step of more than 2^63 rows, DATA_LOSS for files of more.
  static Result<RowPlan> Make(const std::vector<std::vector<int64_t>>& group_rows, const PlanOptions& options);

  // Rows of this worker, whatever has been taken already.
  int64_t total_rows() const { return total_rows_; }

  // The next range, never empty; nothing at the end.
  std::optional<RowRange> Next();

  // Passes over the next `rows` rows, or all where there are fewer. Takes time in proportion to the ranges passed,
  // which is nothing beside reading them.
  void Skip(int64_t rows);

  // For each file, by number, the row groups that its ranges from here on touch, in order. With kBatches also those
  // that lie between.
  std::map<int, std::vector<int>> GroupsLeft() const;

 private:
  // A run of rows in one row group that belongs to this worker; with kBatches every group, whole.
  struct Segment {
    int file;
    int group;
    int64_t first;
    int64_t rows;
  };

  // A file that is being read in turn with others: its segments [segment, end), of the first of which `offset` rows
  // have been taken.
  struct Lane {
    size_t segment;
    size_t end;
    int64_t offset;
  };

  // Next for kRows and kRowGroups, and Next for kBatches.
  std::optional<RowRange> NextOfLanes();
  std::optional<RowRange> NextOfBatches();
  // The next file that nobody reads, as a lane. There must be one.
  Lane TakeFile();
  // With kBatches: the rows [first, second) of all files that this worker reads at `step`.
  std::pair<int64_t, int64_t> StepRows(int64_t step) const;

  PlanOptions options_;
  int64_t total_rows_ = 0;
  // Of all workers.
  int64_t all_rows_ = 0;
  // In the order of the files. Shared by the copies of a plan, as it is all that may be large.
  std::shared_ptr<const std::vector<Segment>> segments_;
  // What Skip left of a range in the middle of which it ended: the next one.
  std::optional<RowRange> pending_;

  // Position of NextOfLanes: the open files, whose turn it is and how many rows are left of it, and the first segment
  // that no lane has taken.
  std::vector<Lane> lanes_;
  size_t lane_ = 0;
  int64_t turn_left_ = 0;
  size_t next_segment_ = 0;

  // Position of NextOfBatches: the step, rows taken of it, and the segment that holds the next row, which begins at
  // `segment_start_`.
  int64_t step_ = 0;
  int64_t step_offset_ = 0;
  size_t segment_ = 0;
  int64_t segment_start_ = 0;
};

}  // namespace lockstep::columnar
