#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>

#include "core/testing/emulator/block.h"
#include "core/testing/emulator/stream.h"

// CUDA's names, for device code that g++ compiles (core/device/runtime.h). Names, arguments and values are CUDA's;
// there are only those that the project uses.
//
// The emulator is stricter in one point: all copies are asynchronous, also copies of memory that is not pinned. As in
// CUDA, a kernel is refused if its stream belongs to another device than the current one.

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict

// Shared memory of a block: T name[count]. Each array lies in the heap by itself, so the address sanitizer sees its
// ends.
// NOLINTBEGIN(bugprone-macro-parentheses): a type, and the name of what is declared
#define LOCKSTEP_SHARED(T, name, count)     \
  T(&name)                                  \
  [count] = *reinterpret_cast<T(*)[count]>( \
      ::lockstep::emulator::current_block->Shared(__COUNTER__, static_cast<int64_t>(sizeof(T) * (count))))
// The shared memory whose size the launch says.
#define LOCKSTEP_DYNAMIC_SHARED(T, name) \
  T* const name = static_cast<T*>(::lockstep::emulator::current_block->dynamic_shared())
// NOLINTEND(bugprone-macro-parentheses)

#define threadIdx (::lockstep::emulator::current_block->thread_index())
#define blockIdx (::lockstep::emulator::current_block->index())
#define blockDim (::lockstep::emulator::current_block->size())
#define gridDim (::lockstep::emulator::current_block->grid())

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
};
using cudaStream_t = lockstep::emulator::Stream*;
using cudaEvent_t = lockstep::emulator::Event*;
using dim3 = lockstep::emulator::Index3;
using cudaHostFn_t = void (*)(void*);
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum : unsigned { cudaEventDefault = 0, cudaEventDisableTiming = 2 };
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr int CUDART_VERSION = 13000;

struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem;
  int major, minor;
  int multiProcessorCount;
};

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream);
cudaError_t cudaMallocHost(void** memory, size_t bytes);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream);

namespace lockstep::emulator {

// Puts a kernel with its arguments into the stream.
cudaError_t LaunchKernel(cudaStream_t stream, Index3 grid, Index3 block, size_t dynamic_bytes,
                         std::function<void()> body);

// Puts a wait into the stream until *at is `value` or a later number.
cudaError_t WaitValue(cudaStream_t stream, uint32_t* at, uint32_t value);

template <typename... Parameters, typename... Arguments>
cudaError_t Launch(cudaStream_t stream, Index3 grid, Index3 block, size_t dynamic_bytes, void (*kernel)(Parameters...),
                   Arguments&&... arguments) {
  const std::tuple<Parameters...> copied(static_cast<Parameters>(arguments)...);
  return LaunchKernel(stream, grid, block, dynamic_bytes, [kernel, copied] { std::apply(kernel, copied); });
}

template <typename T>
uint64_t ToBits(T value) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <typename T>
T FromBits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// Returns the value of a lane. It gets its own if it asks for a lane outside of its group of `width`.
template <typename T>
T Shuffle(unsigned mask, T value, int source, bool is_inside, Site site) {
  const int lane = is_inside ? source : current_block->lane();
  return FromBits<T>(current_block->Exchange(mask, ToBits(value), lane, site)[lane]);
}

// Changes *at to Next(old) in one step, and returns the old value.
template <typename T, typename Next>
T AtomicUpdate(T* at, const Next& next) {
  current_block->MaybeYield();
  std::atomic_ref<T> atomic(*at);
  T old = atomic.load(std::memory_order_relaxed);
  while (!atomic.compare_exchange_weak(old, next(old), std::memory_order_relaxed)) {
  }
  return old;
}

}  // namespace lockstep::emulator

inline void __syncthreads(lockstep::emulator::Site site = lockstep::emulator::Site::current()) {
  lockstep::emulator::current_block->Barrier(site);
}

inline void __syncwarp(unsigned mask = 0xffffffff,
                       lockstep::emulator::Site site = lockstep::emulator::Site::current()) {
  lockstep::emulator::current_block->SyncWarp(mask, site);
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              lockstep::emulator::Site site = lockstep::emulator::Site::current()) {
  const int lane = lockstep::emulator::current_block->lane();
  return lockstep::emulator::Shuffle(mask, value, lane / width * width + (source & (width - 1)), true, site);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32,
                  lockstep::emulator::Site site = lockstep::emulator::Site::current()) {
  const int lane = lockstep::emulator::current_block->lane(), source = lane ^ bits;
  return lockstep::emulator::Shuffle(mask, value, source, source / width <= lane / width, site);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, int delta, int width = 32,
                   lockstep::emulator::Site site = lockstep::emulator::Site::current()) {
  const int lane = lockstep::emulator::current_block->lane(), source = lane + delta;
  return lockstep::emulator::Shuffle(mask, value, source, source / width == lane / width, site);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, int delta, int width = 32,
                 lockstep::emulator::Site site = lockstep::emulator::Site::current()) {
  const int lane = lockstep::emulator::current_block->lane(), source = lane - delta;
  return lockstep::emulator::Shuffle(mask, value, source, source >= lane / width * width, site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              lockstep::emulator::Site site = lockstep::emulator::Site::current()) {
  const uint64_t* const votes = lockstep::emulator::current_block->Exchange(mask, predicate != 0, -1, site);
  unsigned ballot = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) != 0 && votes[lane] != 0) ballot |= 1u << lane;
  }
  return ballot;
}

inline int __any_sync(unsigned mask, int predicate,
                      lockstep::emulator::Site site = lockstep::emulator::Site::current()) {
  return __ballot_sync(mask, predicate, site) != 0;
}

inline int __all_sync(unsigned mask, int predicate,
                      lockstep::emulator::Site site = lockstep::emulator::Site::current()) {
  return __ballot_sync(mask, predicate, site) == mask;
}

inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __clz(int bits) { return std::countl_zero(static_cast<unsigned>(bits)); }

template <typename T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return lockstep::emulator::AtomicUpdate(at, [value](T old) { return static_cast<T>(old + value); });
}
template <typename T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  return lockstep::emulator::AtomicUpdate(at, [value](T old) { return std::min(old, value); });
}
template <typename T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  return lockstep::emulator::AtomicUpdate(at, [value](T old) { return std::max(old, value); });
}
template <typename T>
T atomicOr(T* at, std::type_identity_t<T> value) {
  return lockstep::emulator::AtomicUpdate(at, [value](T old) { return old | value; });
}
template <typename T>
T atomicExch(T* at, std::type_identity_t<T> value) {
  return lockstep::emulator::AtomicUpdate(at, [value](T) { return value; });
}
template <typename T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return lockstep::emulator::AtomicUpdate(at, [&](T old) { return old == expected ? value : old; });
}

inline void __threadfence() { lockstep::emulator::Fence(); }
inline void __nanosleep(unsigned) { lockstep::emulator::current_block->Yield(); }

using std::max;
using std::min;
