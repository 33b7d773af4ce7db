// Two plans in one class. With kRows and kRowGroups, a worker's share is cut out once, as a list of segments: whole row
// groups, except the two at the borders of a contiguous share. Lanes then walk through the list, one for each file that
// is read in turn. When a lane's file ends, the lane takes the next file.
// ```
// segments   f0:g0 f0:g1 | f1:g0 | f2:g0 f2:g1     2 lanes, a turn is sequential_batches * batch_size rows
// lane 0     f0 ------------> f2 ------->
// lane 1     f1 -----> (none left: closed)
// ```
// With kBatches the segments are all row groups of all workers, because a worker's batches are spread over all of them.
// A step's rows are computed: step s of worker i is rows [(s * W + i) * B, + B) of all rows. No list of batches is
// kept; for a long pass it would be larger than everything else here.
//
// Sums and products of numbers of rows are checked in Make. Their error is never OUT_OF_RANGE, which TensorFlow takes
// for the end of the data. In StepRows they stay below the sum of all rows. Only a turn may be too long for 64 bits,
// and then counts as endless.
#include "core/columnar/plan.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <string>

namespace lockstep::columnar {
namespace {

Status AtLeastOne(const char* name, int64_t value) {
  if (value >= 1) return OkStatus();
  return InvalidArgument(std::string(name) + " is " + std::to_string(value) + ", wanted 1 or more");
}

// Returns part * of / whole without overflow: `of` may be as large as a row count can be.
int64_t Portion(int64_t of, int64_t part, int64_t whole) {
  return static_cast<int64_t>(static_cast<__int128>(of) * part / whole);
}

// Assigns each row group, in order, to the worker with the fewest rows so far; the lowest number wins among equals. A
// heap of (rows held, worker) finds it by the order of pairs, so all workers compute the same owners. The greedy rule
// bounds the difference of shares by one row group: a worker that gets one had no more rows than any other.
class FewestRows {
 public:
  explicit FewestRows(int64_t workers) {
    for (int64_t worker = 0; worker < workers; ++worker) queue_.push({0, worker});
  }

  int64_t Assign(int64_t rows) {
    auto [held, worker] = queue_.top();
    queue_.pop();
    queue_.push({held + rows, worker});
    return worker;
  }

 private:
  using Entry = std::pair<int64_t, int64_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

}  // namespace

Status PlanOptions::Validate() const {
  LOCKSTEP_RETURN_IF_ERROR(AtLeastOne("batch_size", batch_size));
  LOCKSTEP_RETURN_IF_ERROR(AtLeastOne("partition_count", partition_count));
  LOCKSTEP_RETURN_IF_ERROR(AtLeastOne("num_parallel_reads", parallel_files));
  LOCKSTEP_RETURN_IF_ERROR(AtLeastOne("num_sequential_reads", sequential_batches));
  if (partition_index < 0 || partition_index >= partition_count) {
    return InvalidArgument("partition_index is " + std::to_string(partition_index) + ", wanted 0 to " +
                           std::to_string(partition_count - 1) + " (partition_count is " +
                           std::to_string(partition_count) + ")");
  }
  if (partition_by == PartitionBy::kBatches && parallel_files > 1) {
    return InvalidArgument("num_parallel_reads is " + std::to_string(parallel_files) +
                           ", wanted 1: partition_by='batches' keeps the order of the files");
  }
  return OkStatus();
}

Result<RowPlan> RowPlan::Make(const std::vector<std::vector<int64_t>>& group_rows, const PlanOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(options.Validate());
  RowPlan plan;
  plan.options_ = options;
  for (const auto& file : group_rows) {
    for (int64_t rows : file) {
      if (__builtin_add_overflow(plan.all_rows_, rows, &plan.all_rows_))
        return DataLoss("the files have more than 2^63 rows");
    }
  }
  // The contiguous share of kRows, as rows of all files; the other ways do not use it.
  const int64_t begin = Portion(plan.all_rows_, options.partition_index, options.partition_count);
  const int64_t end = Portion(plan.all_rows_, options.partition_index + 1, options.partition_count);
  FewestRows owners(options.partition_by == PartitionBy::kRowGroups ? options.partition_count : 1);
  auto segments = std::make_shared<std::vector<Segment>>();
  int64_t start = 0;
  for (int file = 0; file < static_cast<int>(group_rows.size()); ++file) {
    for (int group = 0; group < static_cast<int>(group_rows[file].size()); ++group) {
      // `first` and `last` bound this worker's part of the group, as rows of the group.
      const int64_t rows = group_rows[file][group];
      int64_t first = 0, last = rows;
      if (options.partition_by == PartitionBy::kRows) {
        first = std::clamp<int64_t>(begin - start, 0, rows);
        last = std::clamp<int64_t>(end - start, 0, rows);
      } else if (options.partition_by == PartitionBy::kRowGroups && owners.Assign(rows) != options.partition_index) {
        last = 0;
      }
      if (last > first) segments->push_back({file, group, first, last - first});
      start += rows;
    }
  }
  for (const Segment& segment : *segments) plan.total_rows_ += segment.rows;
  plan.segments_ = segments;
  if (options.partition_by == PartitionBy::kBatches) {
    // All workers have the same whole steps; the remaining rows are divided.
    int64_t step_rows;
    if (__builtin_mul_overflow(options.batch_size, options.partition_count, &step_rows)) {
      return InvalidArgument("batch_size " + std::to_string(options.batch_size) + " times partition_count " +
                             std::to_string(options.partition_count) + " is more than 2^63");
    }
    const int64_t steps = plan.all_rows_ / step_rows;
    auto [first, last] = plan.StepRows(steps);
    plan.total_rows_ = steps * options.batch_size + last - first;
    return plan;
  }
  for (int64_t i = 0; i < options.parallel_files && plan.next_segment_ < segments->size(); ++i) {
    plan.lanes_.push_back(plan.TakeFile());
  }
  return plan;
}

RowPlan::Lane RowPlan::TakeFile() {
  const size_t begin = next_segment_;
  while (next_segment_ < segments_->size() && (*segments_)[next_segment_].file == (*segments_)[begin].file) {
    ++next_segment_;
  }
  return {begin, next_segment_, 0};
}

std::optional<RowRange> RowPlan::Next() {
  // A rest that Skip left of a range comes first.
  if (pending_) return std::exchange(pending_, std::nullopt);
  return options_.partition_by == PartitionBy::kBatches ? NextOfBatches() : NextOfLanes();
}

// A range ends with its segment or with its lane's turn. If files are read one after the other, a turn never ends.
std::optional<RowRange> RowPlan::NextOfLanes() {
  int64_t turn = std::numeric_limits<int64_t>::max();
  if (options_.parallel_files > 1 && __builtin_mul_overflow(options_.batch_size, options_.sequential_batches, &turn)) {
    turn = std::numeric_limits<int64_t>::max();
  }
  if (turn_left_ == 0) turn_left_ = turn;  // at the start
  while (!lanes_.empty()) {
    Lane& lane = lanes_[lane_];
    // The lane's file has ended. The next file takes its place for the rest of the turn. If there is none, the lane is
    // closed, and the next lane's turn begins.
    if (lane.segment == lane.end && next_segment_ < segments_->size()) {
      lane = TakeFile();
    } else if (lane.segment == lane.end) {
      lanes_.erase(lanes_.begin() + lane_);
      if (lane_ == lanes_.size()) lane_ = 0;
      turn_left_ = turn;
      continue;
    }
    const Segment& segment = (*segments_)[lane.segment];
    RowRange range{segment.file, segment.group, segment.first + lane.offset,
                   std::min(segment.rows - lane.offset, turn_left_), false};
    lane.offset += range.rows;
    if (lane.offset == segment.rows) {
      ++lane.segment;
      lane.offset = 0;
      range.last_of_file = lane.segment == lane.end;
    }
    turn_left_ -= range.rows;
    if (turn_left_ == 0) {
      lane_ = (lane_ + 1) % lanes_.size();
      turn_left_ = turn;
    }
    return range;
  }
  return std::nullopt;
}

// All whole steps are alike. The remaining rows make one more step, which is divided evenly among the workers. So all
// workers have the same number of batches, except that the last one may be missing if fewer rows than workers remain.
std::pair<int64_t, int64_t> RowPlan::StepRows(int64_t step) const {
  const int64_t step_rows = options_.batch_size * options_.partition_count;
  const int64_t steps = all_rows_ / step_rows;
  if (step < steps) {
    const int64_t first = step * step_rows + options_.partition_index * options_.batch_size;
    return {first, first + options_.batch_size};
  }
  const int64_t base = steps * step_rows, rest = all_rows_ - base;
  if (step > steps) return {all_rows_, all_rows_};
  return {base + Portion(rest, options_.partition_index, options_.partition_count),
          base + Portion(rest, options_.partition_index + 1, options_.partition_count)};
}

std::optional<RowRange> RowPlan::NextOfBatches() {
  auto [begin, end] = StepRows(step_);
  const int64_t row = begin + step_offset_;
  if (row == end) return std::nullopt;  // only the last step can be empty
  // Rows ascend from step to step, so the search only moves forward, over other workers' groups.
  while (row >= segment_start_ + (*segments_)[segment_].rows) segment_start_ += (*segments_)[segment_++].rows;
  const Segment& segment = (*segments_)[segment_];
  const int64_t segment_end = segment_start_ + segment.rows;
  RowRange range{segment.file, segment.group, row - segment_start_, std::min(end, segment_end) - row, false};
  step_offset_ += range.rows;
  if (row + range.rows == end) {
    ++step_;
    step_offset_ = 0;
  }
  // The file is done if this worker's next row lies after the file's last row group, or if it has no next row.
  auto [next_begin, next_end] = StepRows(step_);
  int64_t file_end = segment_end;
  for (size_t i = segment_ + 1; i < segments_->size() && (*segments_)[i].file == segment.file; ++i) {
    file_end += (*segments_)[i].rows;
  }
  range.last_of_file = next_begin == next_end || next_begin + step_offset_ >= file_end;
  return range;
}

void RowPlan::Skip(int64_t rows) {
  while (rows > 0) {
    std::optional<RowRange> range = Next();
    if (!range) return;
    if (range->rows > rows) {
      range->first += rows;
      range->rows -= rows;
      pending_ = range;
      return;
    }
    rows -= range->rows;
  }
}

std::map<int, std::vector<int>> RowPlan::GroupsLeft() const {
  std::map<int, std::vector<int>> groups;
  if (pending_) groups[pending_->file].push_back(pending_->group);
  const auto add = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      std::vector<int>& of_file = groups[(*segments_)[i].file];
      if (of_file.empty() || of_file.back() != (*segments_)[i].group) of_file.push_back((*segments_)[i].group);
    }
  };
  if (options_.partition_by == PartitionBy::kBatches) {
    add(segment_, segments_->size());
    return groups;
  }
  for (const Lane& lane : lanes_) add(lane.segment, lane.end);
  add(next_segment_, segments_->size());
  return groups;
}

}  // namespace lockstep::columnar
