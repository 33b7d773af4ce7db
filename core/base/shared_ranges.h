#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace lockstep {

// The ranges of one call of a ParallelFor (parallel.h), for threads that come and take one after another: whoever is
// there works, and nobody waits for a thread that has not woken up yet. Thread-safe.
//
//   auto ranges = std::make_shared<SharedRanges>(count, length, work);
//   for (int i = 0; i < helpers; ++i) pool->Schedule([ranges] { ranges->Take(); });
//   ranges->Take();
//   ranges->Wait();
//
// A helper that comes late finds nothing left, and doesn't touch `work`, which may be gone then.
class SharedRanges {
 public:
  using Work = std::function<void(int64_t begin, int64_t end)>;

  // [0, count) in ranges of `length`; `work` outlives Wait.
  SharedRanges(int64_t count, int64_t length, const Work& work);

  // How many ranges there are.
  int64_t size() const { return size_; }
  // Works on ranges until none is left to begin with.
  void Take();
  // Until all ranges have ended.
  void Wait() const;

 private:
  const int64_t count_, length_, size_;
  const Work& work_;
  // In cache lines of their own: every thread writes both.
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int64_t> ended_{0};
};

}  // namespace lockstep
