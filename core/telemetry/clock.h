#pragma once

#include <chrono>
#include <cstdint>

namespace lockstep {

// Returns the time of the machine's monotonic clock in nanoseconds. All processes of a machine have the same clock, as
// long as they share its boot (containers do). It takes some 25 ns. Any thread.
inline int64_t SteadyNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace lockstep
