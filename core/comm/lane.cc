#include "core/comm/lane.h"

#include <chrono>
#include <utility>

namespace lockstep {
namespace {

// True as soon as `news` is no longer what it was.
bool Spin(const std::atomic<uint64_t>& news, uint64_t seen, int spin_us) {
  // The clock is asked once in this many looks.
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

Lane::Lane(int spin_us)
    : state_(std::make_shared<State>()), thread_([state = state_, spin_us] { Run(*state, spin_us); }) {}

Lane::~Lane() {
  {
    std::lock_guard lock(state_->mutex);
    state_->closed = true;
    state_->news.fetch_add(1, std::memory_order_release);
  }
  state_->wake.notify_one();
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void Lane::Post(std::function<void()> work) {
  bool sleeps;
  {
    std::lock_guard lock(state_->mutex);
    state_->queue.push_back(std::move(work));
    state_->news.fetch_add(1, std::memory_order_release);
    sleeps = state_->sleeps;
  }
  if (sleeps) state_->wake.notify_one();
}

void Lane::Run(State& state, int spin_us) {
  std::deque<std::function<void()>> batch;
  while (true) {
    const uint64_t seen = state.news.load(std::memory_order_acquire);
    {
      std::lock_guard lock(state.mutex);
      batch.swap(state.queue);
      if (batch.empty() && state.closed) return;
    }
    if (!batch.empty()) {
      for (; !batch.empty(); batch.pop_front()) batch.front()();
      continue;
    }
    if (Spin(state.news, seen, spin_us)) continue;
    std::unique_lock lock(state.mutex);
    state.sleeps = true;
    state.wake.wait(lock, [&] { return state.closed || !state.queue.empty(); });
    state.sleeps = false;
  }
}

}  // namespace lockstep
