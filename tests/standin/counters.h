#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep::standin {

enum Counter { kToDevice, kToHost, kOnDevice, kLaunches, kCounters };

// Counts of a kind of work on all devices, and its bytes.
struct Work {
  std::atomic<int64_t> count{0};
  std::atomic<int64_t> bytes{0};
};
extern Work counters[kCounters];

inline void Count(Counter counter, uint64_t bytes) {
  counters[counter].count += 1;
  counters[counter].bytes += static_cast<int64_t>(bytes);
}

}  // namespace lockstep::standin
