#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

// Folder emulator/: CUDA's part of a program, on a CPU, for tests. stream.h has streams and events, which stand-ins of
// other libraries (NCCL, TensorFlow's device) share with emulated kernels.

namespace lockstep::emulator {

// A stream: a thread that runs work in the order of posting. Work really is asynchronous, so code that does not wait
// for it fails in tests as it would on a device.
class Stream {
 public:
  // delay_us: the time before each piece of work, in which code that should have waited reads what is not there yet.
  explicit Stream(int64_t delay_us);
  // Runs what was posted, then ends the thread.
  ~Stream();

  void Post(std::function<void()> work);
  // Waits until all work that was posted before has run. Must not be called by work.
  void Drain();
  bool is_idle();

 private:
  void Run(int64_t delay_us);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> posted_;
  bool is_busy_ = false;
  bool is_ending_ = false;
  std::thread thread_;
};

// An event: a point in a stream. The state is shared with posted work, so an event may be destroyed before it passes.
class Event {
 public:
  void Record(Stream& stream);
  // Lets `stream` wait for the latest point at the time of this call.
  void LetWait(Stream& stream) const;
  bool has_passed() const;
  void Synchronize() const;
  // Returns the time at which the latest point passed, in nanoseconds of the steady clock.
  int64_t passed_ns() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::emulator
