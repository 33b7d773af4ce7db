#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/testing/emulator/fiber.h"

// Runs kernels. The threads of a block are fibers of one thread of the system, so barriers, warps and shared memory
// work. Several blocks run at once, on threads of their own, so atomics between blocks are real.
//
// Fibers are switched at barriers, warp operations and atomics, in an order that depends on a seed. So an order on
// which a kernel silently relies shows as a wrong result with some seed, and with the thread sanitizer as a race. A
// barrier that some thread never reaches, and a warp operation with a wrong mask, are reported with their lines and end
// the program.
namespace lockstep::emulator {

inline constexpr int kWarpThreads = 32;
inline constexpr uint64_t kMaxThreads = 1024;           // of a block
inline constexpr uint64_t kMaxSharedBytes = 48 * 1024;  // of a block

// CUDA's dim3: a number is one as well.
struct Index3 {
  constexpr Index3(unsigned x = 1, unsigned y = 1, unsigned z = 1)  // NOLINT(google-explicit-constructor)
      : x(x), y(y), z(z) {}
  unsigned x, y, z;
};

// How kernels that start from now on are run.
struct Schedule {
  uint64_t seed = 0;  // 0: threads take turns in their order
  int num_blocks_at_once = 2;
};

// Sets the schedule of the process; the first is {LOCKSTEP_EMULATED_SEED, 2}. Thread-safe.
void SetSchedule(Schedule schedule);

// A place in a kernel, for messages: std::source_location, which clang 14 does not have.
struct Site {
  static constexpr Site current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
  const char* file = "";
  int line = 0;
};

// A block that runs. Methods are called by its threads.
class Block {
 public:
  Block(Index3 grid, Index3 size, int64_t dynamic_bytes, const std::function<void()>* body);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Runs the block from its first to its last statement.
  void Run(Index3 index, uint64_t random);

  const Index3& grid() const { return grid_; }
  const Index3& size() const { return size_; }
  const Index3& index() const { return index_; }
  const Index3& thread_index() const { return threads_[current_].index; }
  int lane() const { return current_ % kWarpThreads; }

  // Waits until all threads of the block have come.
  void Barrier(Site site);
  // Waits until all threads of the warp that are in `mask` have come to this site. Returns their values, [32]. This
  // thread reads the value of lane `source`, which must be in the mask, or several values if `source` is -1.
  const uint64_t* Exchange(unsigned mask, uint64_t value, int source, Site site);
  // The same, and orders accesses of memory, as __syncwarp does.
  void SyncWarp(unsigned mask, Site site);
  // Lets other threads run, now and then: before atomics.
  void MaybeYield();
  void Yield();

  // Returns the shared memory with this number, which the first thread allocates. Filled with poison.
  void* Shared(int number, int64_t bytes);
  void* dynamic_shared() { return dynamic_.get(); }

 private:
  enum class State : uint8_t { kReady, kAtBarrier, kInWarp, kEnded };
  struct Thread {
    Index3 index;
    State state = State::kReady;
    unsigned mask = 0;
    Site site;
    uint64_t value = 0;
    uint64_t seen[kWarpThreads] = {};
    std::function<void()> body;
  };

  uint64_t Random();
  void SetReady(int thread);
  int TakeReady();
  // Sets the threads of a warp ready if all that `thread`'s mask names have come.
  bool Complete(int thread);
  [[noreturn]] void Fail(const std::string& what) const;

  const Index3 grid_, size_;
  const int num_threads_;
  const std::function<void()>* const body_;
  Index3 index_;
  std::vector<std::unique_ptr<Fiber>> fibers_;  // [threads]
  std::vector<Thread> threads_;                 // [threads]
  // The ready threads, a ring: num_ready_ of them from ready_[first_ready_] on. [threads] It never allocates, because
  // threads of a block share it and the thread sanitizer sees allocations.
  std::vector<int> ready_;
  int first_ready_ = 0, num_ready_ = 0;
  int current_ = 0;
  int num_at_barrier_ = 0, num_ended_ = 0;
  bool is_random_ = false;
  uint64_t random_ = 1;
  uint64_t num_atomics_ = 0;
  const int64_t dynamic_bytes_;
  std::unique_ptr<char[]> dynamic_;
  std::vector<std::pair<int, std::unique_ptr<char[]>>> shared_;
  int64_t shared_bytes_ = 0;
  // Addresses for the thread sanitizer.
  char start_ = 0, end_ = 0, barrier_ = 0;
  char warps_[kMaxThreads / kWarpThreads] = {};
};

// The block that this thread of the system runs; null outside of kernels.
extern constinit thread_local Block* current_block;

// Orders what this thread has written before what it writes next, for all that see the latter.
void Fence();

// Runs all blocks of a kernel and returns. body: the kernel with its arguments.
void RunKernel(Index3 grid, Index3 size, int64_t dynamic_bytes, const std::function<void()>& body);

}  // namespace lockstep::emulator
