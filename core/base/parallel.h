#pragma once

#include <cstdint>
#include <functional>

namespace lockstep {

// How the core uses threads that are not its own: the caller hands in a function that runs `work(begin, end)` for
// ranges that make up [0, count), on any threads, and returns when all have ended. Ranges are no shorter than `grain`
// items, but for the last one. With no threads to give, or none that pay, it calls work(0, count) itself.
//
// Work never waits for another range of the same call, nor for a lock that is held by who waits for the call; so it may
// run on a pool of any size. TensorFlow's intra-op pool and a loop are both such functions.
using ParallelFor =
    std::function<void(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& work)>;

// On the calling thread alone.
inline void RunInline(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& work) {
  if (count > 0) work(0, count);
}

}  // namespace lockstep
