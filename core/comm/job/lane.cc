#include "core/comm/job/lane.h"

#include <chrono>
#include <utility>

// The thread takes the whole queue at a time and runs it without the lock. If it finds nothing, it spins on `news`
// only, without touching the mutex that posters need, and then sleeps on the condition variable.
//
// `news` counts changes of queue and closed. Posters raise it (release) inside the lock. The thread reads it (acquire)
// before it checks the queue, and spins until it differs from that value: a change after the check cannot be missed. It
// only means "check again"; the mutex makes the queue visible. `sleeps` saves posters the system call of a wake-up
// while the thread runs or spins. Both sides use it under the lock. So either the poster sees the sleeper, or the
// sleeper sees the work in its wait's condition.

namespace lockstep {
namespace {

// Returns true as soon as `news` differs from `seen`.
bool Spin(const std::atomic<uint64_t>& news, uint64_t seen, int spin_us) {
  // The clock is read once in this many checks.
  constexpr int kLooks = 32;
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us);
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (news.load(std::memory_order_acquire) != seen) return true;
      __builtin_ia32_pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

Lane::Lane(int spin_us, std::shared_ptr<const void> kept)
    : state_(std::make_shared<State>()),
      thread_([state = state_, spin_us, kept = std::move(kept)] { Run(*state, spin_us); }) {}

// Wakes the thread without checking whether it sleeps: this happens once in a lane's life.
Lane::~Lane() {
  {
    const MutexLock lock(state_->mutex);
    state_->closed = true;
    state_->news.fetch_add(1, std::memory_order_release);
  }
  state_->wake.NotifyOne();
  // A thread cannot join itself. It continues with its share of the state until the queue is empty.
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void Lane::Post(std::function<void()> work) {
  // The wake-up is outside of the lock, so that the thread does not wake only to wait for the lock.
  bool sleeps;
  {
    const MutexLock lock(state_->mutex);
    state_->queue.push_back(std::move(work));
    state_->news.fetch_add(1, std::memory_order_release);
    sleeps = state_->sleeps;
  }
  if (sleeps) state_->wake.NotifyOne();
}

void Lane::Run(State& state, int spin_us) {
  std::deque<std::function<void()>> batch;
  while (true) {
    const uint64_t seen = state.news.load(std::memory_order_acquire);
    {
      const MutexLock lock(state.mutex);
      batch.swap(state.queue);
      if (batch.empty() && state.closed) return;
    }
    if (!batch.empty()) {
      // Each piece is destroyed before the next one runs, so that its tensors and references are released early.
      for (; !batch.empty(); batch.pop_front()) batch.front()();
      continue;
    }
    if (Spin(state.news, seen, spin_us)) continue;
    const MutexLock lock(state.mutex);
    state.sleeps = true;
    while (!state.closed && state.queue.empty()) state.wake.Wait(state.mutex);
    state.sleeps = false;
  }
}

}  // namespace lockstep
