#pragma once

#include <functional>
#include <memory>
#include <vector>

namespace lockstep::emulator {

// A function with a stack of its own that a thread runs in pieces: the thread resumes it, and it yields.
//
// The address and the thread sanitizer know fibers. To the thread sanitizer each fiber is a thread, and a switch orders
// nothing: Release and Acquire state what does. So it finds races between fibers, although they take turns.
//
// One thread at a time may use a fiber; another may use it after it has ended.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Sets the function that the next Resume enters. The one before must have ended.
  void Start(const std::function<void()>* body);
  // Runs the fiber until it yields or ends.
  void Resume();
  // Called inside of the fiber: returns to the thread.
  void Yield();

 private:
  static void Enter();
  void SwitchToThread(bool ends);

  char* stack_ = nullptr;  // above a page without access
  void* top_ = nullptr;    // of the stack, while the fiber does not run
  void* thread_top_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  // State of the address sanitizer.
  void* fake_stack_ = nullptr;
  void* thread_fake_stack_ = nullptr;
  const void* thread_stack_ = nullptr;
  size_t thread_stack_bytes_ = 0;
  // State of the thread sanitizer.
  void* context_ = nullptr;
  void* thread_context_ = nullptr;
};

// Fibers that wait for their next use, because their stacks cost time to make. Thread-safe.
class FiberPool {
 public:
  static std::vector<std::unique_ptr<Fiber>> Take(int count);
  static void Return(std::vector<std::unique_ptr<Fiber>> fibers);
  // Frees those that wait. The thread sanitizer takes each for a thread, and lets no process fork beside threads.
  static void Clear();
};

// Returns whether this program runs with the thread sanitizer.
bool HasThreadSanitizer();

// All that a fiber or thread has written before its Release of an address happened before its or another's Acquire of
// it.
void Release(void* address);
void Acquire(void* address);

// While one of these lives, the thread sanitizer ignores what the fiber or thread reads and writes.
class UnseenAccess {
 public:
  UnseenAccess();
  ~UnseenAccess();
  UnseenAccess(const UnseenAccess&) = delete;
  UnseenAccess& operator=(const UnseenAccess&) = delete;
};

}  // namespace lockstep::emulator
