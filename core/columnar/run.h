#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/columnar/plan.h"
#include "core/columnar/source.h"

namespace lockstep::columnar {

// The row groups of one file that a pass reads, as one run of rows. A row group outside the share, or before the start
// of the pass, is not even opened. Streams of the file count rows in the run (ColumnStream), plans count them in row
// groups; Position converts from plans to streams.
//
//   row groups of the file     0 (100 rows)   1 (50)   2 (70)   3 (30)
//   read: 1 and 3              run            0..49             50..79        begin = {1: 0, 3: 50}, rows = 80
struct Run {
  std::vector<int> groups;
  int64_t rows = 0;

  // The first row of each row group in the run, by the group's number.
  std::map<int, int64_t> begin;

  // Returns the range's first row in the run.
  int64_t Position(const RowRange& range) const { return begin.at(range.group) + range.first; }
};

// The runs of the files of a plan, by the files' numbers.
using Runs = std::map<int, Run>;
// Returns the runs of all files that `plan` still reads, by the files' numbers. They are immutable, so that a reader
// and its decoder's threads share them.
std::shared_ptr<const Runs> RunsOf(const Source& source, const RowPlan& plan);

}  // namespace lockstep::columnar
