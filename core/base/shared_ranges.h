#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace lockstep {

// The ranges of one call of a ParallelFor (parallel.h). Threads take one range after another: each thread that is awake
// works, and no thread waits for one that has not woken up yet. Thread-safe.
// ```cpp
// auto ranges = std::make_shared<SharedRanges>(count, length, work);
// for (int i = 0; i < helpers; ++i) pool->Schedule([ranges] { ranges->Take(); });
// ranges->Take();
// ranges->Wait();
// ```
// A helper that comes late finds no range left and does not touch `work`, which may be destroyed by then.
class SharedRanges {
 public:
  using Work = std::function<void(int64_t begin, int64_t end)>;

  // [0, count) in ranges of `length`; `work` outlives Wait.
  SharedRanges(int64_t count, int64_t length, const Work& work);

  // Returns the number of ranges.
  int64_t size() const { return size_; }
  // Takes and runs ranges until none is left.
  void Take();
  // Waits until all ranges have ended.
  void Wait() const;

 private:
  const int64_t count_, length_, size_;
  const Work& work_;
  // Each in a cache line of its own, because every thread writes both.
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int64_t> ended_{0};
};

}  // namespace lockstep
