#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/columnar/plan.h"
#include "core/columnar/source.h"

namespace lockstep::columnar {

// The row groups of one file that a pass reads, as one run of rows: what lies outside a share, or before the position
// at which a pass begins, is not even opened. Streams of the file count rows in the run (ColumnStream), plans count
// them in row groups, and Position is the way from one to the other.
//
//   row groups of the file     0 (100 rows)   1 (50)   2 (70)   3 (30)
//   read: 1 and 3              run            0..49             50..79        begin = {1: 0, 3: 50}, rows = 80
struct Run {
  std::vector<int> groups;
  int64_t rows = 0;

  // Where each row group begins in the run, by its number.
  std::map<int, int64_t> begin;

  // The range's first row, in the run.
  int64_t Position(const RowRange& range) const { return begin.at(range.group) + range.first; }
};

// The runs of all files that `plan` reads from where it stands, by the files' numbers.
using Runs = std::map<int, Run>;
// The runs of all files that `plan` reads from where it stands, by the files' numbers. Immutable, so that a reader and
// its decoder's threads share one.
std::shared_ptr<const Runs> RunsOf(const Source& source, const RowPlan& plan);

}  // namespace lockstep::columnar
