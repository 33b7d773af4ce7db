// Promise of this file (gpu.md): the emulator finds missing and divergent barriers, wrong masks, races, and accesses
// out of bounds.
#include "core/testing/emulator/block.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "core/testing/emulator/cuda.h"
#include "core/testing/emulator/memory.h"

// Kernels with a fault, which the emulator must find, beside the same kernels without it.
namespace lockstep::emulator {
namespace {

constexpr int kSeeds = 20;
constexpr int kTsanExitCode = 66;

// Runs a kernel on memory of the host, without a stream.
template <typename Kernel, typename... Arguments>
void RunNow(Index3 grid, Index3 block, Kernel kernel, Arguments... arguments) {
  RunKernel(grid, block, 0, [=] { kernel(arguments...); });
}

class BlockTest : public testing::Test {
 protected:
  BlockTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  ~BlockTest() override { SetSchedule({}); }

  // Expects that the thread sanitizer reports a race in `run`, or else that its result is wrong with some seed.
  template <typename IsRight>
  static void ExpectFound(const IsRight& run) {
    if (HasThreadSanitizer()) {
      EXPECT_EXIT(
          {
            SetSchedule({1, 1});
            run();
            std::exit(0);
          },
          testing::ExitedWithCode(kTsanExitCode), "data race");
      return;
    }
    int wrong = 0;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      SetSchedule({seed, 1});
      wrong += run() ? 0 : 1;
    }
    EXPECT_GT(wrong, 0) << "of " << kSeeds << " schedules";
  }

  template <typename IsRight>
  static void ExpectRight(const IsRight& run) {
    for (uint64_t seed = 0; seed <= kSeeds; ++seed) {
      SetSchedule({seed, 2});
      EXPECT_TRUE(run()) << "seed " << seed;
    }
  }
};

// Reverses an array in shared memory.
template <bool kHasBarrier>
void Reverse(const int* in, int* out) {
  LOCKSTEP_SHARED(int, values, 64);
  values[threadIdx.x] = in[threadIdx.x];
  if (kHasBarrier) __syncthreads();
  out[threadIdx.x] = values[63 - threadIdx.x];
}

template <bool kHasBarrier>
bool IsReversed() {
  std::vector<int> in(64), out(64);
  std::iota(in.begin(), in.end(), 0);
  RunNow(1, 64, Reverse<kHasBarrier>, in.data(), out.data());
  return std::equal(in.rbegin(), in.rend(), out.begin());
}

TEST_F(BlockTest, FindsAMissingBarrier) { ExpectFound(IsReversed<false>); }
TEST_F(BlockTest, ABarrierOrdersAccesses) { ExpectRight(IsReversed<true>); }

// Each thread appends its number to a list, and then counts itself.
template <bool kIsAtomic>
void Append(unsigned* count, unsigned* list) {
  unsigned at;
  if (kIsAtomic) {
    at = atomicAdd(count, 1);
  } else {
    at = *count;
    atomicMax(count + 1, at);  // fibers are switched here
    *count = at + 1;
  }
  list[at] = threadIdx.x;
}

template <bool kIsAtomic>
bool AreAllInTheList() {
  std::vector<unsigned> counts(2), list(64);
  RunNow(1, 64, Append<kIsAtomic>, counts.data(), list.data());
  std::sort(list.begin(), list.end());
  for (unsigned i = 0; i < 64; ++i) {
    if (list[i] != i) return false;
  }
  return true;
}

TEST_F(BlockTest, FindsARace) { ExpectFound(AreAllInTheList<false>); }
TEST_F(BlockTest, AtomicsAreNoRace) { ExpectRight(AreAllInTheList<true>); }

// Lanes that read what another one writes.
template <bool kHasBarrier>
void ShareInWarp(int* values, int* out) {
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  kHasBarrier ? __syncwarp() : Fence();
  out[threadIdx.x] = values[31 - threadIdx.x];
}

template <bool kHasBarrier>
bool IsShared() {
  std::vector<int> values(32, -1), out(32);
  RunNow(1, 32, ShareInWarp<kHasBarrier>, values.data(), out.data());
  return std::count(out.begin(), out.end(), -1) == 0;
}

TEST_F(BlockTest, FindsAMissingBarrierOfAWarp) {
  if (HasThreadSanitizer()) return;  // the fence hides it
  ExpectFound(IsShared<false>);
}
TEST_F(BlockTest, ABarrierOfAWarpOrdersAccesses) { ExpectRight(IsShared<true>); }

TEST_F(BlockTest, FindsABarrierThatSomeThreadsNeverReach) {
  EXPECT_DEATH(RunNow(1, 32,
                      [] {
                        if (threadIdx.x < 16) __syncthreads();
                      }),
               "a barrier that others never reach[^$]*thread . waits at the barrier of .*block_test.cc:");
}

void WaitApart() {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST_F(BlockTest, FindsDifferentBarriers) {
  EXPECT_DEATH(RunNow(1, 32, WaitApart), "threads wait at different barriers: .*block_test.cc:.* and .*block_test.cc:");
}

TEST_F(BlockTest, FindsAMaskWithoutTheLane) {
  EXPECT_DEATH(RunNow(1, 32, [] { __shfl_xor_sync(0x0000ffff, 1, 1); }), "lane 16 is not in its mask 0000ffff");
}

TEST_F(BlockTest, FindsAMaskWithALaneThatDoesNotCome) {
  EXPECT_DEATH(RunNow(1, 32,
                      [] {
                        if (threadIdx.x < 16) __ballot_sync(0xffffffff, 1);
                      }),
               "which has ended|others never reach");
}

TEST_F(BlockTest, FindsAMaskWithALaneThatTheBlockDoesNotHave) {
  EXPECT_DEATH(RunNow(1, 8, [] { __syncwarp(); }), "has lane 8, which the block does not have");
}

TEST_F(BlockTest, FindsAShuffleFromALaneOutsideOfTheMask) {
  EXPECT_DEATH(RunNow(1, 32,
                      [] {
                        if (threadIdx.x < 16) __shfl_sync(0xffff, 1, 20);
                      }),
               "reads lane 20, which is not in mask 0000ffff");
}

TEST_F(BlockTest, FindsTooMuchSharedMemory) {
  EXPECT_DEATH(RunNow(1, 1,
                      [] {
                        LOCKSTEP_SHARED(char, memory, 49 * 1024);
                        memory[0] = 1;
                      }),
               "50176 bytes of shared memory");
}

TEST_F(BlockTest, FindsAnAccessOutOfBoundsOfSharedMemory) {
  if (!UsesHeap()) GTEST_SKIP() << "only the address sanitizer (make asan) sees it";
  EXPECT_DEATH(RunNow(1, 33,
                      [] {
                        LOCKSTEP_SHARED(int, memory, 32);
                        memory[threadIdx.x] = 1;
                      }),
               "heap-buffer-overflow|out of bounds");
}

TEST_F(BlockTest, SharedMemoryIsFreshForEachBlock) {
  std::vector<unsigned char> seen(4);
  RunNow(
      4, 1,
      [](unsigned char* out) {
        LOCKSTEP_SHARED(unsigned char, memory, 16);
        out[blockIdx.x] = memory[3];
        memory[3] = 1;
      },
      seen.data());
  EXPECT_EQ(seen, std::vector<unsigned char>(4, 0xa5));
}

TEST_F(BlockTest, ThreadsAndBlocksHaveThreeIndices) {
  const Index3 grid(3, 2, 2), block(4, 3, 2);
  std::vector<int> seen(12 * 24);
  RunNow(
      grid, block,
      [](int* out) {
        const unsigned of_block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        const unsigned of_thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
        out[of_block * 24 + of_thread] += 1;
      },
      seen.data());
  EXPECT_EQ(seen, std::vector<int>(12 * 24, 1));
}

// A thread that waits for another one of its block, and a block that waits for another one.
TEST_F(BlockTest, WaitingThreadsLetOthersRun) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    SetSchedule({seed, 2});
    std::vector<int> flags(2), seen(2);
    RunNow(
        2, 64,
        [](int* flags, int* seen) {
          if (threadIdx.x == 63) atomicExch(&flags[blockIdx.x], 1);
          if (threadIdx.x > 0) return;
          while (atomicAdd(&flags[0], 0) + atomicAdd(&flags[1], 0) < 2) __nanosleep(10);
          seen[blockIdx.x] = 1;
        },
        flags.data(), seen.data());
    EXPECT_EQ(seen, std::vector<int>(2, 1));
  }
}

TEST_F(BlockTest, ASeedRepeatsASchedule) {
  const auto order = [](uint64_t seed) {
    SetSchedule({seed, 1});
    std::vector<unsigned> counts(2), list(64);
    RunNow(1, 64, Append<true>, counts.data(), list.data());
    return list;
  };
  EXPECT_EQ(order(3), order(3));
  EXPECT_NE(order(3), order(4));
  std::vector<unsigned> in_order(64);
  std::iota(in_order.begin(), in_order.end(), 0);
  EXPECT_EQ(order(0), in_order);
}

}  // namespace
}  // namespace lockstep::emulator
