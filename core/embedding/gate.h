#pragma once

#include <condition_variable>
#include <mutex>

namespace lockstep {

// A shared mutex that is fair to writers: while a writer waits, no new reader enters. So a table that is looked up all
// the time still gets its updates. It is taken once for a batch. It meets the standard's SharedMutex requirements
// (without try_...), for std::shared_lock and std::unique_lock. A thread that holds it may not take it again.
// Thread-safe.
class Gate {
 public:
  void lock() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.wait(lock, [this] { return !writing_ && readers_ == 0; });
    --waiting_;
    writing_ = true;
  }
  void unlock() {
    {
      const std::lock_guard lock(mutex_);
      writing_ = false;
    }
    changed_.notify_all();
  }
  void lock_shared() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !writing_ && waiting_ == 0; });
    ++readers_;
  }
  void unlock_shared() {
    {
      const std::lock_guard lock(mutex_);
      if (--readers_ > 0) return;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool writing_ = false;  // all three are guarded by mutex_
  int readers_ = 0;
  int waiting_ = 0;  // writers
};

}  // namespace lockstep
