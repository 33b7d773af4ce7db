#pragma once

// The one header that device code (*.cu, *.cuh) includes before any other: CUDA, or its emulator. Here are the only
// places that differ between the two.
//
// Rules for device code keep nearly all of it testable without a device.
//
// Launch starts kernels, and LOCKSTEP_SHARED declares shared memory. Nothing else uses <<<>>> and __shared__.
//
// Functions that both sides share are constexpr (nvcc's --expt-relaxed-constexpr), and not __host__ __device__.
//
// Kernels use no block-wide code of CUB, which the emulator cannot run.
//
// A loop that waits for another thread contains an atomic, or __nanosleep.
#ifdef __CUDACC__
#include <cuda_runtime.h>

#define LOCKSTEP_SHARED(T, name, count) __shared__ T name[count]
#define LOCKSTEP_DYNAMIC_SHARED(T, name)                            \
  extern __shared__ __align__(16) unsigned char lockstep_dynamic[]; \
  T* const name = reinterpret_cast<T*>(lockstep_dynamic)
#define LOCKSTEP_DEVICE_RUNTIME "CUDA"
#else
#include "core/testing/emulator/cuda.h"
#define LOCKSTEP_DEVICE_RUNTIME "emulator"
#endif

#include <algorithm>
#include <cstdint>

#include "core/device/library.h"

namespace lockstep::device {

#ifdef __CUDACC__
// Puts a kernel into the stream. dynamic_bytes: the size of LOCKSTEP_DYNAMIC_SHARED.
template <typename... Parameters, typename... Arguments>
cudaError_t Launch(cudaStream_t stream, dim3 grid, dim3 block, size_t dynamic_bytes, void (*kernel)(Parameters...),
                   Arguments&&... arguments) {
  kernel<<<grid, block, dynamic_bytes, stream>>>(static_cast<Parameters>(arguments)...);
  return cudaGetLastError();
}

// Holds the stream until the number at `at` is `value` or a later one. Only the driver has this function; its errors
// have the numbers of the runtime's.
inline cudaError_t WaitValue(cudaStream_t stream, uint32_t* at, uint32_t value) {
  using Function = cudaError_t (*)(cudaStream_t stream, uint64_t at, uint32_t value, unsigned flags);
  constexpr unsigned kSince = 12000, kGreaterOrEqual = 0;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &function, kSince, cudaEnableDefault, &found);
  if (error != cudaSuccess) return error;
  if (found != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
  return reinterpret_cast<Function>(function)(stream, reinterpret_cast<uint64_t>(at), value, kGreaterOrEqual);
}
#else
using emulator::Launch;
using emulator::WaitValue;
#endif

inline cudaStream_t Raw(Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }
inline cudaEvent_t Raw(Event event) { return reinterpret_cast<cudaEvent_t>(event); }

// Returns the error of a call, and takes it away: CUDA keeps the last error of a thread until somebody asks for it, and
// Launch asks. So every call that may fail goes through this function.
inline Error Done(cudaError_t error) {
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error;
}

// The threads of a block of kernels whose threads are independent.
inline constexpr int kThreads = 256;

// Returns the blocks for `count` independent pieces of work in a loop with stride. As many as fill the device, and no
// more than there is work for.
int NumBlocks(int64_t count);

// Returns this thread's number in the grid, and the number of its threads.
__device__ inline int64_t ThreadIndex() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline int64_t NumThreads() { return int64_t{gridDim.x} * blockDim.x; }

}  // namespace lockstep::device
