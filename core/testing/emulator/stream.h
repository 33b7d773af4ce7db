#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

// Folder emulator/: CUDA's part of a program, on a CPU, for tests.
//
// ```
// stream.h  streams and events, which stand-ins of NCCL and of TensorFlow's device share with emulated kernels
// memory.h  the memory of devices
// block.h   runs kernels on fibers (fiber.h)
// cuda.h    CUDA's names for all of them
// ```

namespace lockstep::emulator {

// A stream: a thread that runs work in the order of posting. Work really is asynchronous, so code that does not wait
// for it fails in tests as it would on a device. The device's memory is accessible while work runs (memory.h).
// Thread-safe.
class Stream {
 public:
  // delay_us: the time before each piece of work, in which code that should have waited reads what is not there yet.
  explicit Stream(int64_t delay_us);
  // Runs what was posted, then ends the thread.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void Post(std::function<void()> work);
  // Posts work of the host, which may not use the device's memory: calls of its functions, and waits.
  void PostForHost(std::function<void()> work);
  // Waits until all work that was posted before has run. Must not be called by work.
  void Drain();
  bool is_idle();

 private:
  struct Work {
    std::function<void()> run;
    bool uses_memory;
  };
  void Add(Work work);
  void Run(int64_t delay_us);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> posted_;
  uint64_t num_posted_ = 0, num_done_ = 0;
  bool is_ending_ = false;
  std::thread thread_;
};

// An event: a point in a stream. The state is shared with posted work, so an event may be destroyed before it passes. A
// new event has passed. Thread-safe.
class Event {
 public:
  explicit Event(bool is_timed = false) : is_timed_(is_timed) {}
  bool is_timed() const { return is_timed_; }
  void Record(Stream& stream);
  // Lets `stream` wait for the latest point at the time of this call.
  void LetWait(Stream& stream) const;
  bool has_passed() const;
  void Synchronize() const;
  // Returns the time at which the latest point passed, in nanoseconds of the steady clock; 0 before.
  int64_t passed_ns() const;

 private:
  struct Point;
  std::shared_ptr<Point> latest() const;

  const bool is_timed_;
  mutable std::mutex mutex_;
  std::shared_ptr<Point> latest_;  // null: never recorded
};

}  // namespace lockstep::emulator
