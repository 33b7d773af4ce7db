#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "core/base/parallel.h"

namespace lockstep::testing {

// A ParallelFor for tests and benchmarks. The calling thread and `threads - 1` others take a call's ranges, of one
// grain each, in any order. Calls of several threads take turns. Threads sleep between calls, after a short spin. The
// function that Get returns may be used as long as the pool lives. Thread-safe.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 1; i < threads; ++i) threads_.emplace_back([this] { Serve(); });
  }
  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  ParallelFor Get() {
    return [this](int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& work) {
      const std::lock_guard turn(turn_);
      {
        const std::lock_guard lock(mutex_);
        work_ = &work;
        count_ = count;
        grain_ = grain;
        next_ = 0;
        running_ = static_cast<int>(threads_.size());
        ++call_;
      }
      wake_.notify_all();
      Help();
      std::unique_lock lock(mutex_);
      for (int spin = 0; running_ > 0 && spin < 1000; ++spin) {
        lock.unlock();
        lock.lock();
      }
      done_.wait(lock, [this] { return running_ == 0; });
    };
  }

 private:
  void Help() {
    while (true) {
      const int64_t begin = next_.fetch_add(grain_);
      if (begin >= count_) return;
      (*work_)(begin, std::min(count_, begin + grain_));
    }
  }

  void Serve() {
    int64_t seen = 0;
    while (true) {
      for (int spin = 0; call_ == seen && spin < 2000; ++spin) std::this_thread::yield();
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || call_ != seen; });
        if (stop_) return;
        seen = call_;
      }
      Help();
      {
        const std::lock_guard lock(mutex_);
        if (--running_ > 0) continue;
      }
      done_.notify_all();
    }
  }

  std::mutex turn_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::atomic<int64_t> call_{0};  // written under mutex_
  bool stop_ = false;             // guarded by mutex_
  int running_ = 0;               // guarded by mutex_
  // The current call; written while no thread helps.
  const std::function<void(int64_t, int64_t)>* work_ = nullptr;
  int64_t count_ = 0, grain_ = 1;
  std::atomic<int64_t> next_{0};
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::testing
