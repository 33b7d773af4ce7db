#include "core/testing/emulator/cuda.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <thread>
#include <vector>

#include "core/testing/emulator/memory.h"

namespace lockstep::emulator {
namespace {

const int kTwoDevices = ::setenv("LOCKSTEP_EMULATED_DEVICES", "2", 1);  // before the first use

class CudaTest : public testing::Test {
 protected:
  CudaTest() {
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  ~CudaTest() override {
    SetSchedule({});
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  void Wait() { EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }

  // Runs a kernel with one block, which fills an array of `count` numbers, and returns them.
  template <typename Kernel>
  std::vector<int> Numbers(int count, unsigned threads, Kernel* kernel) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, count * sizeof(int)), cudaSuccess);
    EXPECT_EQ(Launch(stream_, 1, threads, 1024, kernel, static_cast<int*>(memory)), cudaSuccess);
    std::vector<int> numbers(count);
    EXPECT_EQ(cudaMemcpyAsync(numbers.data(), memory, count * sizeof(int), cudaMemcpyDefault, stream_), cudaSuccess);
    Wait();
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
    return numbers;
  }

  cudaStream_t stream_ = nullptr;
};

void Nothing() {}

TEST_F(CudaTest, RefusesWrongLaunches) {
  EXPECT_EQ(kTwoDevices, 0);
  EXPECT_EQ(Launch(stream_, 1, 1025, 0, Nothing), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(Launch(stream_, 0, 32, 0, Nothing), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch(stream_, 1, 0, 0, Nothing), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch(stream_, 1, 32, 49 * 1024, Nothing), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch(stream_, dim3(1, 65536), 32, 0, Nothing), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch(stream_, 1, 1024, 48 * 1024, Nothing), cudaSuccess);
}

TEST_F(CudaTest, RefusesAStreamOfAnotherDevice) {
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(Launch(stream_, 1, 32, 0, Nothing), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  int device = -1;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 1);
  std::thread([] {
    int of_thread = -1;
    EXPECT_EQ(cudaGetDevice(&of_thread), cudaSuccess);
    EXPECT_EQ(of_thread, 0);
  }).join();
}

TEST_F(CudaTest, EachDeviceHasItsMemory) {
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(free, total);
  void *all = nullptr, *more = nullptr;
  EXPECT_EQ(cudaMalloc(&all, total), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&more, 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(more, nullptr);
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&more, 1), cudaSuccess);
  EXPECT_EQ(DeviceOf(all), 0);
  EXPECT_EQ(DeviceOf(more), 1);
  EXPECT_EQ(cudaFree(all), cudaSuccess);
  EXPECT_EQ(cudaFree(more), cudaSuccess);
  EXPECT_EQ(cudaFree(all), cudaErrorInvalidValue);
}

TEST_F(CudaTest, FreeWaitsForPendingWork) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 4), cudaSuccess);
  std::atomic<bool> is_open = false, has_run = false;
  stream_->Post([&] { is_open.wait(false); });
  stream_->Post([&] { has_run = true; });
  std::thread opening([&] {
    is_open = true;
    is_open.notify_all();
  });
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_TRUE(has_run);
  opening.join();
}

// As a kernel's arguments, a kernel's memory of one stream may be freed before it runs.
TEST_F(CudaTest, MemoryOfAStreamIsFreedInItsOrder) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMallocAsync(&memory, 4, stream_), cudaSuccess);
  const auto fill = +[](int* value) { *value = 42; };
  EXPECT_EQ(Launch(stream_, 1, 1, 0, fill, static_cast<int*>(memory)), cudaSuccess);
  int value = 0;
  EXPECT_EQ(cudaMemcpyAsync(&value, memory, 4, cudaMemcpyDefault, stream_), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(memory, stream_), cudaSuccess);
  Wait();
  EXPECT_EQ(value, 42);
  EXPECT_EQ(DeviceOf(memory), -1);
}

TEST_F(CudaTest, CopiesAndFillsAreAsynchronous) {
  std::atomic<bool> is_open = false;
  stream_->PostForHost([&] { is_open.wait(false); });
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 8), cudaSuccess);
  std::vector<unsigned char> bytes(8, 0);
  EXPECT_EQ(cudaMemsetAsync(memory, 7, 8, stream_), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(bytes.data(), memory, 8, cudaMemcpyDefault, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  is_open = true;
  is_open.notify_all();
  Wait();
  EXPECT_EQ(cudaStreamQuery(stream_), cudaSuccess);
  EXPECT_EQ(bytes, std::vector<unsigned char>(8, 7));
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST_F(CudaTest, Shuffles) {
  const std::vector<int> seen = Numbers(
      6 * 32, 32, +[](int* out) {
        const int lane = static_cast<int>(threadIdx.x);
        out[lane] = __shfl_sync(~0u, lane, 35);
        out[32 + lane] = __shfl_xor_sync(~0u, lane, 5);
        out[64 + lane] = __shfl_down_sync(~0u, lane, 3);
        out[96 + lane] = __shfl_up_sync(~0u, lane, 3);
        out[128 + lane] = __shfl_down_sync(~0u, lane, 3, 8);
        out[160 + lane] = __shfl_sync(~0u, lane, 1, 4);
      });
  for (int lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(seen[lane], 3);
    EXPECT_EQ(seen[32 + lane], lane ^ 5);
    EXPECT_EQ(seen[64 + lane], lane + 3 < 32 ? lane + 3 : lane);
    EXPECT_EQ(seen[96 + lane], lane >= 3 ? lane - 3 : lane);
    EXPECT_EQ(seen[128 + lane], lane % 8 + 3 < 8 ? lane + 3 : lane);
    EXPECT_EQ(seen[160 + lane], lane / 4 * 4 + 1);
  }
}

TEST_F(CudaTest, VotesAndBits) {
  const std::vector<int> seen = Numbers(
      8, 32, +[](int* out) {
        const int lane = static_cast<int>(threadIdx.x);
        const unsigned odd = __ballot_sync(~0u, lane % 2);
        const bool any = __any_sync(~0u, lane == 7), none = __any_sync(~0u, lane == 40);
        const bool all = __all_sync(~0u, lane < 32), not_all = __all_sync(~0u, lane < 31);
        if (lane > 0) return;
        const int results[] = {static_cast<int>(odd), any, none, all, not_all, __popc(odd), __ffs(8), __clz(8)};
        for (int i = 0; i < 8; ++i) out[i] = results[i];
      });
  EXPECT_EQ(seen, (std::vector<int>{static_cast<int>(0xaaaaaaaa), 1, 0, 1, 0, 16, 4, 28}));
}

TEST_F(CudaTest, DynamicSharedMemory) {
  const std::vector<int> seen = Numbers(
      64, 64, +[](int* out) {
        LOCKSTEP_DYNAMIC_SHARED(int, values);
        values[threadIdx.x] = static_cast<int>(threadIdx.x);
        __syncthreads();
        out[threadIdx.x] = values[63 - threadIdx.x];
      });
  for (int i = 0; i < 64; ++i) EXPECT_EQ(seen[i], 63 - i);
}

TEST_F(CudaTest, AtomicsBetweenBlocks) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    SetSchedule({seed, 2});
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, 7 * sizeof(int)), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(memory, 0, 7 * sizeof(int), stream_), cudaSuccess);
    const auto kernel = +[](int* out) {
      const int number = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
      atomicAdd(&out[0], number);
      atomicMin(&out[1], -number);
      atomicMax(&out[2], number);
      atomicOr(&out[3], 1 << number % 8);
      for (int seen = 0, next; (next = atomicCAS(&out[4], seen, seen + 1)) != seen;) seen = next;
      if (atomicCAS(&out[5], 0, 1) == 0) atomicExch(&out[6], 9);
    };
    EXPECT_EQ(Launch(stream_, 4, 64, 0, kernel, static_cast<int*>(memory)), cudaSuccess);
    std::vector<int> out(7);
    EXPECT_EQ(cudaMemcpyAsync(out.data(), memory, 7 * sizeof(int), cudaMemcpyDefault, stream_), cudaSuccess);
    Wait();
    EXPECT_EQ(out, (std::vector<int>{255 * 128, -255, 255, 255, 256, 1, 9}));
    EXPECT_EQ(cudaFree(memory), cudaSuccess);
  }
}

TEST_F(CudaTest, TheDefaultStreamIsOfTheCurrentDevice) {
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(Launch(nullptr, 1, 32, 0, Nothing), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(nullptr), cudaErrorInvalidResourceHandle);
}

TEST_F(CudaTest, ErrorsHaveTexts) {
  EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
  EXPECT_STREQ(cudaGetErrorString(static_cast<cudaError_t>(12345)), "unrecognized error code");
}

}  // namespace
}  // namespace lockstep::emulator
