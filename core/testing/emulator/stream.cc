#include "core/testing/emulator/stream.h"

#include <chrono>
#include <optional>
#include <utility>

#include "core/base/float_mode.h"
#include "core/testing/emulator/memory.h"

namespace lockstep::emulator {

Stream::Stream(int64_t delay_us) : thread_([this, delay_us] { Run(delay_us); }) {}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::Post(std::function<void()> work) { Add({std::move(work), true}); }

void Stream::PostForHost(std::function<void()> work) { Add({std::move(work), false}); }

void Stream::Add(Work work) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(work));
    ++num_posted_;
  }
  changed_.notify_all();
}

void Stream::Drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this, end = num_posted_] { return num_done_ >= end; });
}

bool Stream::is_idle() {
  const std::lock_guard lock(mutex_);
  return num_done_ == num_posted_;
}

// Memory stays accessible from one piece of work to the next, because changing that costs time. Without a delay there
// is nothing between them that a host's access could hide in for long.
void Stream::Run(int64_t delay_us) {
  const GradualUnderflow gradual_underflow;  // as on a device; TensorFlow's threads pass their own mode on
  std::optional<MemoryAccess> access;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (posted_.empty() || delay_us > 0 || !posted_.front().uses_memory) access.reset();
    changed_.wait(lock, [this] { return is_ending_ || !posted_.empty(); });
    if (posted_.empty()) return;
    Work work = std::move(posted_.front());
    posted_.pop_front();
    lock.unlock();
    if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    if (work.uses_memory && !access) access.emplace();
    work.run();
    work.run = nullptr;  // what it holds ends before the work counts as done
    lock.lock();
    ++num_done_;
    changed_.notify_all();
  }
}

struct Event::Point {
  std::mutex mutex;
  std::condition_variable passed;
  int64_t passed_ns = 0;  // 0: not yet

  void Pass() {
    {
      const std::lock_guard lock(mutex);
      passed_ns = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    }
    passed.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex);
    passed.wait(lock, [this] { return passed_ns > 0; });
  }
};

std::shared_ptr<Event::Point> Event::latest() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

void Event::Record(Stream& stream) {
  const auto point = std::make_shared<Point>();
  {
    const std::lock_guard lock(mutex_);
    latest_ = point;
  }
  stream.PostForHost([point] { point->Pass(); });
}

void Event::LetWait(Stream& stream) const {
  if (const auto point = latest()) stream.PostForHost([point] { point->Wait(); });
}

bool Event::has_passed() const {
  const auto point = latest();
  return point == nullptr || passed_ns() > 0;
}

void Event::Synchronize() const {
  if (const auto point = latest()) point->Wait();
}

int64_t Event::passed_ns() const {
  const auto point = latest();
  if (point == nullptr) return 0;
  const std::lock_guard lock(point->mutex);
  return point->passed_ns;
}

}  // namespace lockstep::emulator
