#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/status.h"

namespace lockstep::columnar {

// How the rows of all files are divided among the workers. Each way gives every row to exactly one worker. The rows of
// a worker and their order are computed before anything is read, from the numbers of rows in the footers. Every worker
// computes all shares by the same rules, so the workers need not communicate. That is safe because all have the same
// list of files (ExpandPaths) and the same footers.
// ```
// two row groups of 5 rows, 2 workers, batch 2        worker 0          worker 1
// kRows        contiguous halves                      0 1 | 2 3 | 4     5 6 | 7 8 | 9
// kRowGroups   group by group                         0 1 | 2 3 | 4     5 6 | 7 8 | 9
// kBatches     step by step, 8 and 9 divided          0 1 | 4 5 | 8     2 3 | 6 7 | 9
// ```
enum class PartitionBy : uint8_t {
  // Contiguous shares that differ by at most one row. A row group on a border is decoded by both its neighbours.
  kRows,
  // Whole row groups, each to the worker with the fewest rows so far. Shares differ by at most the rows of one row
  // group, and no row is decoded twice.
  kRowGroups,
  // Batches in turn: step s of W workers with batch size B reads the same rows as step s of one worker with batch size
  // W * B. Every worker decodes every row group. The last step's rows are divided evenly.
  kBatches,
};

// A worker's part of the data and its order. All workers have the same options, except for partition_index.
struct PlanOptions {
  PartitionBy partition_by = PartitionBy::kRows;
  // The number of workers that share the rows, at least 1, and the number of this worker, from 0.
  int64_t partition_count = 1;
  int64_t partition_index = 0;

  // Rows of a batch, at least 1. It affects the order of rows with kBatches and with several files in turn.
  int64_t batch_size = 1;

  // Reads this many files in turn, the rows of `sequential_batches` batches from each. When a file ends, the next one
  // takes its place. 1 reads one file after the other. More than 1 is refused with kBatches, which keeps the order of
  // the files.
  int64_t parallel_files = 1;
  int64_t sequential_batches = 1;

  // Returns INVALID_ARGUMENT with the option's name, its value and the allowed values.
  Status Validate() const;
};

// Rows [first, first + rows) of a row group: a part of the plan. It ends with its row group, with its turn and, with
// kBatches, with its batch.
struct RowRange {
  int file = 0;
  int group = 0;
  int64_t first = 0;
  int64_t rows = 0;
  // No later range touches this file.
  bool last_of_file = false;

  friend bool operator==(const RowRange&, const RowRange&) = default;
};

// The sequence of row ranges that one worker reads. It depends only on the row groups' sizes and the options, and is
// the same on every machine. A file's ranges come in ascending order. Copies are cheap and continue where the original
// stands. Thread-compatible.
// ```cpp
// LOCKSTEP_ASSIGN_OR_RETURN(RowPlan plan, RowPlan::Make({{100, 50}, {70}}, options));   // two files
// plan.Skip(position);
// const auto groups = plan.GroupsLeft();             // what has to be opened
// while (auto range = plan.Next()) ...
// ```
class RowPlan {
 public:
  // A plan without rows.
  RowPlan() = default;

  // Makes a plan; `group_rows[f][g]` is the number of rows of group g of file f, 0 or more. INVALID_ARGUMENT for bad
  // options (see Validate) and for a step of more than 2^63 rows, DATA_LOSS for files of more than 2^63 rows.
  static Result<RowPlan> Make(const std::vector<std::vector<int64_t>>& group_rows, const PlanOptions& options);

  // Returns the number of rows of this worker, including the part that is already taken.
  int64_t total_rows() const { return total_rows_; }

  // Returns the next range, which is never empty, or nothing at the end.
  std::optional<RowRange> Next();

  // Passes over the next `rows` rows, or over all if there are fewer. It takes time in proportion to the ranges, which
  // is negligible compared with reading them.
  void Skip(int64_t rows);

  // Returns for each file, by number, the row groups that its remaining ranges touch, in order. With kBatches the
  // groups in between are included.
  std::map<int, std::vector<int>> GroupsLeft() const;

 private:
  // A run of rows in one row group that belongs to this worker. With kBatches it is every group, whole.
  struct Segment {
    int file;
    int group;
    int64_t first;
    int64_t rows;
  };

  // A file that is being read in turn with others: its segments [segment, end). `offset` rows of the first one have
  // been taken.
  struct Lane {
    size_t segment;
    size_t end;
    int64_t offset;
  };

  // Implement Next: one for kRows and kRowGroups, one for kBatches.
  std::optional<RowRange> NextOfLanes();
  std::optional<RowRange> NextOfBatches();
  // Takes the next file that no lane reads, as a lane. There must be one.
  Lane TakeFile();
  // Returns the rows [first, second) of all files that this worker reads at `step`, with kBatches.
  std::pair<int64_t, int64_t> StepRows(int64_t step) const;

  PlanOptions options_;
  int64_t total_rows_ = 0;
  // The rows of all workers.
  int64_t all_rows_ = 0;
  // In the order of the files. Copies of a plan share it, because it is the only part that may be large.
  std::shared_ptr<const std::vector<Segment>> segments_;
  // The rest of a range inside which Skip ended; it comes next.
  std::optional<RowRange> pending_;

  // The position of NextOfLanes: the open files, the lane whose turn it is, the rows that are left of the turn, and the
  // first segment that no lane has taken.
  std::vector<Lane> lanes_;
  size_t lane_ = 0;
  int64_t turn_left_ = 0;
  size_t next_segment_ = 0;

  // The position of NextOfBatches: the step, the rows taken of it, and the segment with the next row, which begins at
  // `segment_start_`.
  int64_t step_ = 0;
  int64_t step_offset_ = 0;
  size_t segment_ = 0;
  int64_t segment_start_ = 0;
};

}  // namespace lockstep::columnar
