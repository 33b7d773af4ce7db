#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/device/check/session.h"

namespace lockstep::device {

// One kernel with one type. `run` compares it with the CPU's function, bit for bit except for the payload of a NaN, on
// random data of several sizes and alignments. It returns INTERNAL with the first element that differs.
struct Check {
  std::string name;  // "reduce sum float32"
  std::function<Status(Session& session, uint64_t seed)> run;
};

// Returns the checks of all kernels. sizes: the numbers of elements; 0 is one that kernels must accept.
std::vector<Check> AllChecks(const std::vector<int64_t>& sizes);

}  // namespace lockstep::device
