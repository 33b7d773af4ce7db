#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

namespace lockstep {

// The core's way to use threads of others. The caller hands in a function that runs `work(begin, end)` for ranges that
// make up [0, count), on any threads, and returns when all have ended. Ranges have at least `grain` items, except the
// last one. With no threads to use, or too little work for them, it calls work(0, count) itself.
//
// Work never waits for another range of the same call, and for no lock that the waiting caller holds. So it may run on
// a pool of any size. TensorFlow's intra-op pool and a plain loop are both such functions.
using ParallelFor =
    std::function<void(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& work)>;

// Runs all work on the calling thread.
inline void RunInline(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& work) {
  if (count > 0) work(0, count);
}

// Calls work(list, begin, end) for ranges of the items of several lists, in parallel. The items are divided as if all
// lists were one. counts: the number of items of each list.
inline void ForEachRange(std::span<const int64_t> counts, int64_t grain, const ParallelFor& parallel,
                         const std::function<void(size_t list, int64_t begin, int64_t end)>& work) {
  std::vector<int64_t> ends(counts.size());
  std::inclusive_scan(counts.begin(), counts.end(), ends.begin());
  parallel(ends.empty() ? 0 : ends.back(), grain, [&](int64_t begin, int64_t end) {
    auto list = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin());
    for (; begin < end; ++list) {
      const int64_t before = ends[list] - counts[list], next = std::min(end, ends[list]);
      if (begin < next) work(list, begin - before, next - before);
      begin = next;
    }
  });
}

}  // namespace lockstep
