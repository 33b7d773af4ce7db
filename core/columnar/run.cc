#include "core/columnar/run.h"

#include <utility>

namespace lockstep::columnar {

std::shared_ptr<const Runs> RunsOf(const Source& source, const RowPlan& plan) {
  auto runs = std::make_shared<Runs>();
  // Whole row groups, even if the share has only a part of one: a stream cannot begin inside one.
  for (auto& [file, groups] : plan.GroupsLeft()) {
    Run& run = (*runs)[file];
    for (int group : groups) {
      run.begin[group] = run.rows;
      run.rows += source.files()[file].group_rows[group];
    }
    run.groups = groups;
  }
  return runs;
}

}  // namespace lockstep::columnar
