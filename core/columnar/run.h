#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/columnar/plan.h"
#include "core/columnar/source.h"

namespace lockstep::columnar {

// The row groups of one file that a pass reads, as one run of rows: what lies outside a share, or before the position
// at which a pass begins, is not even opened.
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
std::shared_ptr<const Runs> RunsOf(const Source& source, const RowPlan& plan);

}  // namespace lockstep::columnar
