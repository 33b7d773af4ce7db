#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
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
      const MutexLock lock(mutex_);
      stop_ = true;
    }
    wake_.NotifyAll();
    for (std::thread& thread : threads_) thread.join();
  }

  ParallelFor Get() {
    return [this](int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& work) {
      const MutexLock turn(turn_);
      {
        const MutexLock lock(mutex_);
        work_ = &work;
        count_ = count;
        grain_ = grain;
        next_ = 0;
        running_ = static_cast<int>(threads_.size());
        ++call_;
      }
      wake_.NotifyAll();
      Help();
      MutexLock lock(mutex_);
      for (int spin = 0; running_ > 0 && spin < 1000; ++spin) {
        lock.unlock();
        lock.lock();
      }
      while (running_ != 0) done_.Wait(mutex_);
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
        const MutexLock lock(mutex_);
        while (!stop_ && call_ == seen) wake_.Wait(mutex_);
        if (stop_) return;
        seen = call_;
      }
      Help();
      {
        const MutexLock lock(mutex_);
        if (--running_ > 0) continue;
      }
      done_.NotifyAll();
    }
  }

  Mutex turn_;
  Mutex mutex_;
  CondVar wake_, done_;
  std::atomic<int64_t> call_{0};  // written under mutex_
  bool stop_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  int running_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  // The current call; written while no thread helps.
  const std::function<void(int64_t, int64_t)>* work_ = nullptr;
  int64_t count_ = 0, grain_ = 1;
  std::atomic<int64_t> next_{0};
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::testing
