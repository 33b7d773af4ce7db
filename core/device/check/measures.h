#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/device/check/session.h"

namespace lockstep::device {

// The time of one kernel on much data.
struct Measure {
  std::string name;  // "reduce sum float32, 4 sources"
  int64_t bytes;     // that it must read and write
  double us;         // the median of several runs
  double bytes_per_us() const { return us > 0 ? static_cast<double>(bytes) / us : 0; }
};

// Measures a plain copy on the device, which comes first, and then all kernels. bytes: the size of an array.
Result<std::vector<Measure>> MeasureKernels(Session& session, int64_t bytes);

}  // namespace lockstep::device
