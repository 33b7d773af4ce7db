#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/testing/job.h"
#include "core/testing/long_tests.h"

namespace lockstep {

// Returns the shapes of jobs on devices for a test's shapes on hosts: with at most `most` ranks, by each backend.
// `make test` takes only those with the names in `quick`.
inline std::vector<JobShape> ShapesOnDevices(const std::vector<JobShape>& of_hosts, int most,
                                             const std::vector<std::string>& quick) {
  std::vector<JobShape> shapes;
  const auto add = [&](JobShape shape, const char* backend) {
    shape.device = backend;
    const bool is_quick = std::find(quick.begin(), quick.end(), ToString(shape)) != quick.end();
    if (is_quick || testing::RunsLongTests()) shapes.push_back(std::move(shape));
  };
  for (const JobShape& shape : of_hosts) {
    if (shape.size > most) continue;
    add(shape, "nccl");
    // The host's communicator does its part in its own tests.
    if (shape.size <= 3 && shape.backend != "auto") add(shape, "staged");
  }
  return shapes;
}

}  // namespace lockstep
