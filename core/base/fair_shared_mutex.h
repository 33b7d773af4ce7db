#pragma once

#include "core/base/mutex.h"

namespace lockstep {

// A shared mutex that is fair to writers: while a writer waits, no new reader enters. So a table that is looked up all
// the time still gets its updates. It costs more than a SharedMutex: it is for locks that are taken once for a batch,
// by ReaderLock and WriterLock. A thread that holds it may not take it again. Thread-safe.
class LOCKSTEP_CAPABILITY("mutex") FairSharedMutex {
 public:
  void lock() LOCKSTEP_ACQUIRE() {
    const MutexLock lock(mutex_);
    ++waiting_;
    while (writing_ || readers_ > 0) changed_.Wait(mutex_);
    --waiting_;
    writing_ = true;
  }
  void unlock() LOCKSTEP_RELEASE() {
    {
      const MutexLock lock(mutex_);
      writing_ = false;
    }
    changed_.NotifyAll();
  }
  void lock_shared() LOCKSTEP_ACQUIRE_SHARED() {
    const MutexLock lock(mutex_);
    while (writing_ || waiting_ > 0) changed_.Wait(mutex_);
    ++readers_;
  }
  void unlock_shared() LOCKSTEP_RELEASE_SHARED() {
    {
      const MutexLock lock(mutex_);
      if (--readers_ > 0) return;
    }
    changed_.NotifyAll();
  }

  // Tells the analysis that the caller holds it; checks nothing.
  void AssertReaderHeld() const LOCKSTEP_ASSERT_SHARED_CAPABILITY(this) {}

 private:
  Mutex mutex_;
  CondVar changed_;
  bool writing_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  int readers_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  int waiting_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // writers
};

}  // namespace lockstep
