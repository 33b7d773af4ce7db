#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>

#include "core/base/parallel.h"
#include "core/base/shared_ranges.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace lockstep {

// Returns the core's ParallelFor on the kernel's thread and TensorFlow's worker threads ("intra-op"). In the pool's own
// ParallelFor, the calling thread works on one range and then waits for others to wake up, which takes as long as a
// whole lookup. The kernel's device outlives the result.
inline ParallelFor ParallelForOf(tensorflow::OpKernelContext* context) {
  const auto* const threads = context->device()->tensorflow_cpu_worker_threads();
  return [threads](int64_t count, int64_t grain, const SharedRanges::Work& work) {
    if (count <= grain || threads->num_threads <= 1) return RunInline(count, grain, work);
    // Several ranges per thread, because they do not all take equally long.
    constexpr int64_t kRangesPerThread = 8;
    const int64_t most = kRangesPerThread * threads->num_threads;
    const auto ranges = std::make_shared<SharedRanges>(count, std::max(grain, (count + most - 1) / most), work);
    const int64_t helpers = std::min<int64_t>(threads->num_threads, ranges->size()) - 1;
    for (int64_t i = 0; i < helpers; ++i) threads->workers->Schedule([ranges] { ranges->Take(); });
    ranges->Take();
    ranges->Wait();
  };
}

}  // namespace lockstep
