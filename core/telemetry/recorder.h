#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/fork_guard.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/telemetry/trace_event.h"
#include "core/telemetry/trace_file.h"

namespace lockstep {

// Takes events from all threads and writes them to a trace file, on a thread of its own.
//
// Recording copies the event into a list under a mutex, which takes some 50 ns. The writer takes the whole list five
// times per second, so a process that is killed loses at most a fifth of a second. If the writer falls behind by
// kMostEvents, further events are dropped and counted. In a fork of the process nothing is recorded. Thread-safe.
class Recorder {
 public:
  static constexpr size_t kMostEvents = 1 << 16;

  // Begins to write. RESOURCE_EXHAUSTED if no thread can be started.
  static Result<std::unique_ptr<Recorder>> Create(std::unique_ptr<TraceFile> file, const TraceHeader& header);
  // Writes what is left, and the end of the file.
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  void Record(const TraceEvent& event);
  // Names the row of a lane; its events have this number.
  void NameLane(int lane, std::string name);
  int64_t dropped() const { return state_->dropped.load(std::memory_order_relaxed); }

 private:
  // The writer owns a share. So in a fork, which has no writer, nothing of it is destroyed: a condition variable waits
  // in its destructor for threads that only the parent has.
  struct State {
    explicit State(std::unique_ptr<TraceFile> file) : file(std::move(file)) {}

    const std::unique_ptr<TraceFile> file;  // used by the writer
    std::atomic<int64_t> dropped{0};
    Mutex mutex;
    CondVar wake;
    std::vector<TraceEvent> events LOCKSTEP_GUARDED_BY(mutex);
    std::vector<std::pair<int, std::string>> lanes LOCKSTEP_GUARDED_BY(mutex);  // rows to be named
    bool ends LOCKSTEP_GUARDED_BY(mutex) = false;
  };

  explicit Recorder(std::unique_ptr<TraceFile> file) : state_(std::make_shared<State>(std::move(file))) {}
  // The writer's body.
  static void Run(State& state);

  const ForkGuard fork_;
  const std::shared_ptr<State> state_;
  std::thread writer_;
};

}  // namespace lockstep
