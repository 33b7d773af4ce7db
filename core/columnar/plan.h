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

// A worker's part of the data and the order in which it is read.
struct PlanOptions {
  PartitionBy partition_by = PartitionBy::kRows;
  int64_t partition_count = 1;
  int64_t partition_index = 0;

  // Rows of a batch.
  int64_t batch_size = 1;

  // Reads this many files in turn, `sequential_batches` batches' rows from each; a file that ends gives its place to
  // the next. 1: one file after the other.
  int64_t parallel_files = 1;
  int64_t sequential_batches = 1;

  // INVALID_ARGUMENT that names the option, what it is and what it may be.
  Status Validate() const;
};

// Rows [first, first + rows) of a row group.
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
// it is the same on every machine. A file's ranges come in ascending order. Cheap to copy: a copy goes on from
// where the original stands. Thread-compatible.
class RowPlan {
 public:
  // A plan without rows.
  RowPlan() = default;

  // `group_rows[f][g]`: rows of group g of file f.
  static Result<RowPlan> Make(const std::vector<std::vector<int64_t>>& group_rows, const PlanOptions& options);

  // Rows of this worker, whatever has been taken already.
  int64_t total_rows() const { return total_rows_; }

  // The next range, never empty; nothing at the end.
  std::optional<RowRange> Next();

  // Passes over the next `rows` rows.
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

  std::optional<RowRange> NextOfLanes();
  std::optional<RowRange> NextOfBatches();
  Lane TakeFile();
  // With kBatches: the rows [first, second) of all files that this worker reads at `step`.
  std::pair<int64_t, int64_t> StepRows(int64_t step) const;

  PlanOptions options_;
  int64_t total_rows_ = 0;
  int64_t all_rows_ = 0;
  std::shared_ptr<const std::vector<Segment>> segments_;
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
