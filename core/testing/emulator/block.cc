#include "core/testing/emulator/block.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "core/base/strings.h"

// The build leaves this file and fiber.cc without the thread sanitizer, which would see the threads of a block as
// threads that use the block's state without a lock.

namespace lockstep::emulator {
namespace {

constexpr unsigned char kPoison = 0xa5;
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

constinit std::mutex schedule_mutex;
Schedule& TheSchedule() {
  static Schedule schedule = [] {
    const char* const seed = std::getenv("LOCKSTEP_EMULATED_SEED");
    return Schedule{seed == nullptr ? 0 : std::strtoull(seed, nullptr, 10), 2};
  }();
  return schedule;
}
// Each launch has a schedule of its own.
constinit std::atomic<uint64_t> num_launches = 0;

std::string At(const Site& site) { return StrCat(site.file, ":", site.line); }

bool IsSame(const Site& a, const Site& b) { return a.line == b.line && std::strcmp(a.file, b.file) == 0; }

std::string Hex(unsigned mask) {
  char text[16];
  std::snprintf(text, sizeof(text), "%08x", mask);
  return text;
}

int64_t Volume(Index3 size) { return int64_t{size.x} * size.y * size.z; }

Index3 IndexOf(uint64_t linear, Index3 size) {
  const uint64_t layer = uint64_t{size.x} * size.y;
  return {static_cast<unsigned>(linear % size.x), static_cast<unsigned>(linear / size.x % size.y),
          static_cast<unsigned>(linear / layer)};
}

}  // namespace

constinit thread_local Block* current_block = nullptr;

void SetSchedule(Schedule schedule) {
  const std::lock_guard lock(schedule_mutex);
  TheSchedule() = schedule;
  num_launches = 0;
}

Block::Block(Index3 grid, Index3 size, int64_t dynamic_bytes, const std::function<void()>* body)
    : grid_(grid),
      size_(size),
      num_threads_(static_cast<int>(Volume(size))),
      body_(body),
      fibers_(FiberPool::Take(num_threads_)),
      threads_(num_threads_),
      ready_(num_threads_),
      dynamic_bytes_(dynamic_bytes),
      dynamic_(new char[dynamic_bytes]) {
  for (int t = 0; t < num_threads_; ++t) {
    threads_[t].index = IndexOf(t, size);
    threads_[t].body = [this, t] {
      Acquire(&start_);
      (*body_)();
      Release(&end_);
      threads_[t].state = State::kEnded;
      ++num_ended_;
    };
  }
}

Block::~Block() { FiberPool::Return(std::move(fibers_)); }

void Block::Run(Index3 index, uint64_t random) {
  index_ = index;
  is_random_ = random != 0;
  random_ = random | 1;
  num_ended_ = num_at_barrier_ = 0;
  shared_.clear();
  shared_bytes_ = dynamic_bytes_;
  std::memset(dynamic_.get(), kPoison, dynamic_bytes_);
  Release(&start_);
  for (int t = 0; t < num_threads_; ++t) {
    fibers_[t]->Start(&threads_[t].body);
    SetReady(t);
  }
  current_block = this;
  while (num_ready_ > 0) {
    current_ = TakeReady();
    fibers_[current_]->Resume();
  }
  current_block = nullptr;
  Acquire(&end_);
  if (num_ended_ == num_threads_) return;
  Fail(num_at_barrier_ > 0 ? "threads wait at a barrier that others never reach"
                           : "threads wait in a warp operation that others never reach");
}

uint64_t Block::Random() {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return random_;
}

void Block::SetReady(int thread) {
  threads_[thread].state = State::kReady;
  ready_[(first_ready_ + num_ready_++) % num_threads_] = thread;
}

int Block::TakeReady() {
  int& first = ready_[first_ready_];
  if (is_random_) std::swap(ready_[(first_ready_ + Random() % num_ready_) % num_threads_], first);
  first_ready_ = (first_ready_ + 1) % num_threads_;
  --num_ready_;
  return first;
}

void Block::Barrier(Site site) {
  Thread& thread = threads_[current_];
  Release(&barrier_);
  for (const Thread& other : threads_) {
    if (other.state != State::kAtBarrier) continue;
    if (!IsSame(other.site, site)) {
      Fail(StrCat("threads wait at different barriers: ", At(site), " and ", At(other.site)));
    }
    break;
  }
  thread.site = site;
  thread.state = State::kAtBarrier;
  if (++num_at_barrier_ < num_threads_) {
    fibers_[current_]->Yield();
  } else {
    num_at_barrier_ = 0;
    for (int t = 0; t < num_threads_; ++t) {
      if (t != current_) SetReady(t);
    }
    thread.state = State::kReady;
    MaybeYield();
  }
  Acquire(&barrier_);
}

const uint64_t* Block::Exchange(unsigned mask, uint64_t value, int source, Site site) {
  Thread& thread = threads_[current_];
  if ((mask >> lane() & 1) == 0) {
    Fail(StrCat("lane ", lane(), " is not in its mask ", Hex(mask), " at ", At(site)));
  }
  if (source >= 0 && (mask >> source & 1) == 0) {
    Fail(StrCat("lane ", lane(), " reads lane ", source, ", which is not in mask ", Hex(mask), " at ", At(site)));
  }
  thread.mask = mask;
  thread.site = site;
  thread.value = value;
  thread.state = State::kInWarp;
  if (Complete(current_)) {
    thread.state = State::kReady;
    MaybeYield();
  } else {
    fibers_[current_]->Yield();
  }
  return thread.seen;
}

bool Block::Complete(int thread) {
  const int warp = thread / kWarpThreads * kWarpThreads;
  const Thread& own = threads_[thread];
  uint64_t values[kWarpThreads] = {};
  for (int lane = 0; lane < kWarpThreads; ++lane) {
    if ((own.mask >> lane & 1) == 0) continue;
    if (warp + lane >= num_threads_) {
      Fail(StrCat("mask ", Hex(own.mask), " at ", At(own.site), " has lane ", lane, ", which the block does not have"));
    }
    const Thread& other = threads_[warp + lane];
    if (other.state == State::kEnded) {
      Fail(StrCat("mask ", Hex(own.mask), " at ", At(own.site), " has lane ", lane, ", which has ended"));
    }
    if (other.state != State::kInWarp || other.mask != own.mask || !IsSame(other.site, own.site)) return false;
    values[lane] = other.value;
  }
  for (int lane = 0; lane < kWarpThreads; ++lane) {
    if ((own.mask >> lane & 1) == 0) continue;
    for (int i = 0; i < kWarpThreads; ++i) threads_[warp + lane].seen[i] = values[i];
    if (warp + lane != thread) SetReady(warp + lane);
  }
  return true;
}

void Block::SyncWarp(unsigned mask, Site site) {
  char& warp = warps_[current_ / kWarpThreads];
  Release(&warp);
  Exchange(mask, 0, -1, site);
  Acquire(&warp);
}

void Block::MaybeYield() {
  // A thread that waits for another one in a loop of atomics must not keep it from running.
  constexpr uint64_t kTurn = 64;
  if (is_random_ ? Random() % 4 == 0 : ++num_atomics_ % kTurn == 0) Yield();
}

void Block::Yield() {
  SetReady(current_);
  fibers_[current_]->Yield();
}

void* Block::Shared(int number, int64_t bytes) {
  for (const auto& [known, memory] : shared_) {
    if (known == number) return memory.get();
  }
  shared_bytes_ += bytes;
  if (shared_bytes_ > static_cast<int64_t>(kMaxSharedBytes)) {
    Fail(StrCat(shared_bytes_, " bytes of shared memory; a block has ", kMaxSharedBytes));
  }
  const UnseenAccess unseen;  // no thread of the block owns it
  shared_.emplace_back(number, new char[bytes]);
  char* const memory = shared_.back().second.get();
  std::memset(memory, kPoison, bytes);
  return memory;
}

void Block::Fail(const std::string& what) const {
  std::fprintf(stderr, "emulator: block (%u, %u, %u): %s\n", index_.x, index_.y, index_.z, what.c_str());
  int reported = 0, num_left_out = 0;
  for (int t = 0; t < num_threads_; ++t) {
    const Thread& thread = threads_[t];
    if (thread.state == State::kReady || thread.state == State::kEnded) continue;
    if (++reported > 8) {
      ++num_left_out;
    } else if (thread.state == State::kAtBarrier) {
      std::fprintf(stderr, "  thread %d waits at the barrier of %s\n", t, At(thread.site).c_str());
    } else {
      std::fprintf(stderr, "  thread %d waits in the warp operation of %s with mask %08x\n", t, At(thread.site).c_str(),
                   thread.mask);
    }
  }
  if (num_left_out > 0) std::fprintf(stderr, "  and %d more; %d threads have ended\n", num_left_out, num_ended_);
  std::abort();
}

void Fence() {
  static char all = 0;
  Release(&all);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  Acquire(&all);
}

void RunKernel(Index3 grid, Index3 size, int64_t dynamic_bytes, const std::function<void()>& body) {
  Schedule schedule;
  {
    const std::lock_guard lock(schedule_mutex);
    schedule = TheSchedule();
  }
  const uint64_t launch = num_launches++;
  const uint64_t num_blocks = Volume(grid);
  std::atomic<uint64_t> next = 0;
  const auto run = [&] {
    Block block(grid, size, dynamic_bytes, &body);
    for (uint64_t i; (i = next++) < num_blocks;) {
      block.Run(IndexOf(i, grid), schedule.seed == 0 ? 0 : (schedule.seed + launch) * kGolden + i * 2 + 1);
    }
  };
  std::vector<std::thread> others;
  for (int s = 1; s < schedule.num_blocks_at_once && s < static_cast<int64_t>(num_blocks); ++s)
    others.emplace_back(run);
  run();
  for (std::thread& other : others) other.join();
}

}  // namespace lockstep::emulator
