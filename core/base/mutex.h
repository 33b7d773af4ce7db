#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

// Annotations of locks, for clang's thread safety analysis (`make lint`). They are attributes of clang and have no
// effect on the program; other compilers do not see them. The names come from clang's manual:
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
#if defined(__clang__)
#define LOCKSTEP_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define LOCKSTEP_THREAD_ANNOTATION(x)
#endif

// A class that is a lock, and a class that holds a lock until its destruction.
#define LOCKSTEP_CAPABILITY(name) LOCKSTEP_THREAD_ANNOTATION(capability(name))
#define LOCKSTEP_SCOPED_CAPABILITY LOCKSTEP_THREAD_ANNOTATION(scoped_lockable)

// A member or variable that is read and written with the mutex held; PT: what the pointer points to.
#define LOCKSTEP_GUARDED_BY(mutex) LOCKSTEP_THREAD_ANNOTATION(guarded_by(mutex))
#define LOCKSTEP_PT_GUARDED_BY(mutex) LOCKSTEP_THREAD_ANNOTATION(pt_guarded_by(mutex))

// The caller holds the mutexes, exclusively or shared with other readers; the caller does not hold them.
#define LOCKSTEP_REQUIRES(...) LOCKSTEP_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define LOCKSTEP_REQUIRES_SHARED(...) LOCKSTEP_THREAD_ANNOTATION(requires_shared_capability(__VA_ARGS__))
#define LOCKSTEP_EXCLUDES(...) LOCKSTEP_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))

// The function takes or releases the mutexes; without an argument, the object's.
#define LOCKSTEP_ACQUIRE(...) LOCKSTEP_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define LOCKSTEP_ACQUIRE_SHARED(...) LOCKSTEP_THREAD_ANNOTATION(acquire_shared_capability(__VA_ARGS__))
#define LOCKSTEP_TRY_ACQUIRE(...) LOCKSTEP_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define LOCKSTEP_RELEASE(...) LOCKSTEP_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define LOCKSTEP_RELEASE_SHARED(...) LOCKSTEP_THREAD_ANNOTATION(release_shared_capability(__VA_ARGS__))
#define LOCKSTEP_RELEASE_GENERIC(...) LOCKSTEP_THREAD_ANNOTATION(release_generic_capability(__VA_ARGS__))

// The mutex is taken after (before) these, if both are held.
#define LOCKSTEP_ACQUIRED_AFTER(...) LOCKSTEP_THREAD_ANNOTATION(acquired_after(__VA_ARGS__))
#define LOCKSTEP_ACQUIRED_BEFORE(...) LOCKSTEP_THREAD_ANNOTATION(acquired_before(__VA_ARGS__))

// The function returns a reference to this mutex.
#define LOCKSTEP_RETURN_CAPABILITY(mutex) LOCKSTEP_THREAD_ANNOTATION(lock_returned(mutex))
// The function tells the analysis that the mutex is held, where it cannot see it. A comment says who holds it.
#define LOCKSTEP_ASSERT_CAPABILITY(...) LOCKSTEP_THREAD_ANNOTATION(assert_capability(__VA_ARGS__))
#define LOCKSTEP_ASSERT_SHARED_CAPABILITY(...) LOCKSTEP_THREAD_ANNOTATION(assert_shared_capability(__VA_ARGS__))
// The analysis leaves this function out. A comment says why it is right.
#define LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS LOCKSTEP_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace lockstep {

// A std::mutex that the analysis knows. Members name it in their declaration:
// ```cpp
// Mutex mutex_;
// int64_t count_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
// void Add() LOCKSTEP_REQUIRES(mutex_);         // private: the caller holds the mutex
//
// void Class::Report() {
//   const MutexLock lock(mutex_);
//   Add();
// }
// ```
// Lambdas are functions of their own for the analysis: one that runs with the mutex held says
// `[this]() LOCKSTEP_REQUIRES(mutex_) { ... }`. Not recursive.
class LOCKSTEP_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() LOCKSTEP_ACQUIRE() { mutex_.lock(); }
  void unlock() LOCKSTEP_RELEASE() { mutex_.unlock(); }
  bool try_lock() LOCKSTEP_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

  // Tells the analysis that the caller holds the mutex; checks nothing.
  void AssertHeld() const LOCKSTEP_ASSERT_CAPABILITY(this) {}

 private:
  friend class CondVar;

  std::mutex mutex_;
};

// A std::shared_mutex that the analysis knows: one writer, or any number of readers.
class LOCKSTEP_CAPABILITY("mutex") SharedMutex {
 public:
  SharedMutex() = default;
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  void lock() LOCKSTEP_ACQUIRE() { mutex_.lock(); }
  void unlock() LOCKSTEP_RELEASE() { mutex_.unlock(); }
  void lock_shared() LOCKSTEP_ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void unlock_shared() LOCKSTEP_RELEASE_SHARED() { mutex_.unlock_shared(); }

  // Tell the analysis that the caller holds the mutex (exclusively, shared); check nothing.
  void AssertHeld() const LOCKSTEP_ASSERT_CAPABILITY(this) {}
  void AssertReaderHeld() const LOCKSTEP_ASSERT_SHARED_CAPABILITY(this) {}

 private:
  std::shared_mutex mutex_;
};

// Holds a mutex until its destruction. unlock() and lock() open it for a while in between.
class LOCKSTEP_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) LOCKSTEP_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() LOCKSTEP_RELEASE() {
    if (held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() LOCKSTEP_RELEASE() {
    held_ = false;
    mutex_.unlock();
  }
  void lock() LOCKSTEP_ACQUIRE() {
    mutex_.lock();
    held_ = true;
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

// Holds a shared mutex for reading until its destruction. M is SharedMutex, or a class with its methods.
template <typename M>
class LOCKSTEP_SCOPED_CAPABILITY ReaderLock {
 public:
  explicit ReaderLock(M& mutex) LOCKSTEP_ACQUIRE_SHARED(mutex) : mutex_(mutex) { mutex_.lock_shared(); }
  ~ReaderLock() LOCKSTEP_RELEASE_GENERIC() { mutex_.unlock_shared(); }
  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;

 private:
  M& mutex_;
};

// Holds a shared mutex for writing until its destruction. M is SharedMutex, or a class with its methods.
template <typename M>
class LOCKSTEP_SCOPED_CAPABILITY WriterLock {
 public:
  explicit WriterLock(M& mutex) LOCKSTEP_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~WriterLock() LOCKSTEP_RELEASE() { mutex_.unlock(); }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  M& mutex_;
};

// A std::condition_variable for Mutex. Waits may end without a reason, so a caller waits in a loop, which the analysis
// reads as well:
// ```cpp
// while (!ready_) changed_.Wait(mutex_);
// ```
class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  void NotifyOne() { changed_.notify_one(); }
  void NotifyAll() { changed_.notify_all(); }

  // Releases the mutex while it waits.
  void Wait(Mutex& mutex) LOCKSTEP_REQUIRES(mutex) {
    Adopted lock(mutex);
    changed_.wait(lock.lock);
  }
  // Return false at the end of the time, and true for a notification, or without a reason.
  template <typename Clock, typename Duration>
  bool WaitUntil(Mutex& mutex, const std::chrono::time_point<Clock, Duration>& end) LOCKSTEP_REQUIRES(mutex) {
    Adopted lock(mutex);
    return changed_.wait_until(lock.lock, end) == std::cv_status::no_timeout;
  }
  template <typename Rep, typename Period>
  bool WaitFor(Mutex& mutex, const std::chrono::duration<Rep, Period>& time) LOCKSTEP_REQUIRES(mutex) {
    return WaitUntil(mutex, std::chrono::steady_clock::now() + time);
  }

 private:
  // Lends the caller's lock to the condition variable.
  struct Adopted {
    explicit Adopted(Mutex& mutex) : lock(mutex.mutex_, std::adopt_lock) {}
    ~Adopted() { lock.release(); }
    std::unique_lock<std::mutex> lock;
  };

  std::condition_variable changed_;
};

}  // namespace lockstep
