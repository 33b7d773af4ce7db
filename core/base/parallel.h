#pragma once

#include <cstdint>
#include <functional>

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

}  // namespace lockstep
