#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>

#include "core/base/parallel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace lockstep {

// TensorFlow's worker threads ("intra-op") as the core's ParallelFor. For kernels that run on TensorFlow's other
// threads
// ("inter-op"), as all do. The kernel's device outlives it.
inline ParallelFor ParallelForOf(tensorflow::OpKernelContext* context) {
  const auto* const threads = context->device()->tensorflow_cpu_worker_threads();
  return [threads](int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& work) {
    if (count <= grain || threads->num_threads <= 1) return RunInline(count, grain, work);
    // Several pieces for each thread, as not all take equally long.
    constexpr int64_t kPiecesPerThread = 4;
    const int64_t pieces = kPiecesPerThread * threads->num_threads;
    using Pool = tensorflow::thread::ThreadPool;
    threads->workers->ParallelFor(count,
                                  Pool::SchedulingParams(Pool::SchedulingStrategy::kFixedBlockSize, std::nullopt,
                                                         std::max(grain, (count + pieces - 1) / pieces)),
                                  work);
  };
}

}  // namespace lockstep
