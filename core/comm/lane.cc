#include "core/comm/lane.h"

#include <chrono>
#include <utility>

namespace lockstep {

Lane::Lane(int spin_us) : spin_us_(spin_us), thread_([this] { Run(); }) {}

Lane::~Lane() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    news_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_one();
  thread_.join();
}

void Lane::Post(std::function<void()> work) {
  bool sleeps;
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    news_.fetch_add(1, std::memory_order_release);
    sleeps = sleeps_;
  }
  if (sleeps) wake_.notify_one();
}

void Lane::Run() {
  std::deque<std::function<void()>> batch;
  while (true) {
    const uint64_t seen = news_.load(std::memory_order_acquire);
    {
      std::lock_guard lock(mutex_);
      batch.swap(queue_);
      if (batch.empty() && closed_) return;
    }
    if (!batch.empty()) {
      for (; !batch.empty(); batch.pop_front()) batch.front()();
      continue;
    }
    if (Spin(seen)) continue;
    std::unique_lock lock(mutex_);
    sleeps_ = true;
    wake_.wait(lock, [this] { return closed_ || !queue_.empty(); });
    sleeps_ = false;
  }
}

bool Lane::Spin(uint64_t seen) const {
  // The clock is asked once in this many looks.
  constexpr int kLooks = 32;
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us_);
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (news_.load(std::memory_order_acquire) != seen) return true;
      __builtin_ia32_pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace lockstep
