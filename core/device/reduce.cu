#include "core/comm/collective/operations.h"
#include "core/device/kernels.h"
#include "core/device/packs.cuh"

namespace lockstep::device {
namespace {

// Reduces the elements of one pack, source by source, as ReduceBlock (core/comm/collective/reduce.cc) does. All sources
// are read before the result is written, so `out` may be one of them.
template <typename E, typename Op, bool kMean, int kCount>
__device__ void ReducePack(const char* first, int64_t stride_bytes, int num_sources, int64_t pack,
                           typename E::Stored* out) {
  using Read = Pack<typename E::Stored, kCount>;
  typename E::Value values[kCount];
  const Read begin = reinterpret_cast<const Read*>(first)[pack];
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = E::Load(begin.values[i]);
#pragma unroll 4
  for (int s = 1; s < num_sources; ++s) {
    const Read next = reinterpret_cast<const Read*>(first + s * stride_bytes)[pack];
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = Op::Apply(values[i], E::Load(next.values[i]));
  }
  Read result;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (kMean) values[i] /= static_cast<typename E::Value>(num_sources);
    result.values[i] = E::Store(values[i]);
  }
  reinterpret_cast<Read*>(out)[pack] = result;
}

template <typename E, typename Op, bool kMean, int kCount>
__global__ void ReduceKernel(const char* first, int64_t stride_bytes, int num_sources, int64_t count,
                             typename E::Stored* out) {
  const int64_t num_packs = count / kCount;
  for (int64_t p = ThreadIndex(); p < num_packs; p += NumThreads()) {
    ReducePack<E, Op, kMean, kCount>(first, stride_bytes, num_sources, p, out);
  }
  if constexpr (kCount > 1) {
    for (int64_t i = num_packs * kCount + ThreadIndex(); i < count; i += NumThreads()) {
      ReducePack<E, Op, kMean, 1>(first, stride_bytes, num_sources, i, out);
    }
  }
}

template <typename E, typename Op, bool kMean = false>
Error Run(Stream stream, int num_sources, int64_t count, const void* first, int64_t stride_bytes, void* out) {
  constexpr int kCount = kPackBytes / static_cast<int>(sizeof(typename E::Stored));
  const auto* from = static_cast<const char*>(first);
  auto* to = static_cast<typename E::Stored*>(out);
  if (ArePackAligned(first, out) && stride_bytes % kPackBytes == 0) {
    return Launch(Raw(stream), NumBlocks(count / kCount + 1), kThreads, 0, ReduceKernel<E, Op, kMean, kCount>, from,
                  stride_bytes, num_sources, count, to);
  }
  return Launch(Raw(stream), NumBlocks(count), kThreads, 0, ReduceKernel<E, Op, kMean, 1>, from, stride_bytes,
                num_sources, count, to);
}

}  // namespace

Error Reduce(Stream stream, ReduceOp op, DType dtype, int num_sources, int64_t count, const void* first,
             int64_t stride_bytes, void* out) {
  if (num_sources < 1 || count < 0) return cudaErrorInvalidValue;
  return WithElement(dtype, [&]<typename E>(E) -> Error {
    using Arithmetic = typename ArithmeticOf<E>::Type;
    if constexpr (!std::is_floating_point_v<typename E::Value>) {
      if (op == ReduceOp::kMean) return cudaErrorInvalidValue;
    }
    if (count == 0) return kSuccess;
    switch (op) {
      case ReduceOp::kSum: return Run<Arithmetic, Sum>(stream, num_sources, count, first, stride_bytes, out);
      case ReduceOp::kMin: return Run<E, Min>(stream, num_sources, count, first, stride_bytes, out);
      case ReduceOp::kMax: return Run<E, Max>(stream, num_sources, count, first, stride_bytes, out);
      case ReduceOp::kProduct: return Run<Arithmetic, Product>(stream, num_sources, count, first, stride_bytes, out);
      case ReduceOp::kMean: break;
    }
    if constexpr (std::is_floating_point_v<typename E::Value>) {
      return Run<E, Sum, true>(stream, num_sources, count, first, stride_bytes, out);
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

}  // namespace lockstep::device
