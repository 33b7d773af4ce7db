#pragma once

#include "core/device/runtime.h"

namespace lockstep::device {

// Elements that a thread reads and writes at once: 16 bytes are one instruction. Arrays of packs begin at addresses
// that are aligned for them.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
};

inline constexpr int kPackBytes = 16;

// Returns whether all numbers (addresses, strides) are multiples of a pack's bytes.
template <typename... Numbers>
bool ArePackAligned(Numbers... numbers) {
  return ((reinterpret_cast<uintptr_t>(numbers) % kPackBytes == 0) && ...);
}

// Returns the last of `count` ranges, at most 128, that begins at `at` or before. first: [count], ascending from 0.
__device__ inline int RangeOf(const int* first, int count, int at) {
  int range = 0;
  for (int step = 64; step > 0; step /= 2) {
    if (range + step < count && first[range + step] <= at) range += step;
  }
  return range;
}

// Sets out[i] = function(in[i]), kCount elements at a time, and the last ones one by one. `out` may be `in`.
template <int kCount, typename In, typename Out, typename Function>
__global__ void MapKernel(const In* in, int64_t count, Out* out, Function function) {
  const int64_t num_packs = count / kCount;
  for (int64_t p = ThreadIndex(); p < num_packs; p += NumThreads()) {
    const Pack<In, kCount> read = reinterpret_cast<const Pack<In, kCount>*>(in)[p];
    Pack<Out, kCount> written;
#pragma unroll
    for (int i = 0; i < kCount; ++i) written.values[i] = function(read.values[i]);
    reinterpret_cast<Pack<Out, kCount>*>(out)[p] = written;
  }
  for (int64_t i = num_packs * kCount + ThreadIndex(); i < count; i += NumThreads()) out[i] = function(in[i]);
}

template <typename In, typename Out, typename Function>
Error Map(Stream stream, const void* in, int64_t count, void* out, Function function) {
  constexpr int kCount = kPackBytes / static_cast<int>(std::max(sizeof(In), sizeof(Out)));
  if (count <= 0) return count == 0 ? kSuccess : cudaErrorInvalidValue;
  const auto* from = static_cast<const In*>(in);
  auto* to = static_cast<Out*>(out);
  if (ArePackAligned(in, out)) {
    return Launch(Raw(stream), NumBlocks(count / kCount + 1), kThreads, 0, MapKernel<kCount, In, Out, Function>, from,
                  count, to, function);
  }
  return Launch(Raw(stream), NumBlocks(count), kThreads, 0, MapKernel<1, In, Out, Function>, from, count, to, function);
}

}  // namespace lockstep::device
