#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/fork_guard.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/comm/named/named_batch.h"

namespace lockstep {

// Records what a named lane does, for people: a file in Chrome's trace format (chrome://tracing, ui.perfetto.dev),
// which is an array of JSON objects. It has one row for each tensor. Numbered calls share one row, or as many as run at
// the same time. The names of the parts are Horovod's.
//
//   NEGOTIATE_ALLREDUCE   from the first rank's request until rank 0 has put it into the order
//     0, 1, ...           marks: when the request of this rank arrived
//   ALLREDUCE             from there to its end on this rank
//     QUEUE               until the batches before it are done
//     EXCHANGE            its batch, the same for all tensors of the batch
//   CYCLE_START           marks, in a row of their own: each time that something was put into the order
//
// A failed request has only the first part.
// Times are from this rank's clock, in microseconds since Start. It is off until Start; then each call except `on`
// locks a mutex and writes some hundred bytes. The file is up to date at the end of each exchange. If the rank is
// killed, only the closing bracket is missing, and viewers do not need it. A fork of the process writes nothing.
// Thread-safe.
class Timeline {
 public:
  Timeline() = default;
  ~Timeline() { (void)Stop(); }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Begins a new file, and ends the one before. `mark_cycles`: with CYCLE_START. INVALID_ARGUMENT if the file cannot be
  // written.
  Status Start(const std::string& path, bool mark_cycles);
  // Ends the file; does nothing if there is none. RESOURCE_EXHAUSTED if not everything could be written.
  Status Stop();
  bool on() const { return on_.load(std::memory_order_relaxed); }

  // A rank made the request.
  void Requested(const NamedRequest& request, int rank);
  // They were put into the order.
  void Ordered(const NamedBatch& batch);
  // Its exchange begins, and has ended. Without an exchange, only `End` is called.
  void Begin(const NamedBatch& batch);
  void End(const NamedBatch& batch);
  // Something is put into the order.
  void Cycle();

 private:
  struct Row {
    int number;
    std::string title;
    bool negotiates = false;
    int depth = 0;  // parts that have begun, after the negotiation
  };

  // All of the following need a file.
  bool IsOn() const LOCKSTEP_REQUIRES(mutex_) { return file_.valid(); }
  // The row of a tensor in progress; RowOf makes it one, from the free rows.
  Row& RowOf(const NamedRequest& request) LOCKSTEP_REQUIRES(mutex_);
  Row* FindRow(const std::string& name) LOCKSTEP_REQUIRES(mutex_);
  Row NewRow(const std::string& title) LOCKSTEP_REQUIRES(mutex_);
  // Ends all parts that have begun.
  void EndAll(Row& row) LOCKSTEP_REQUIRES(mutex_);
  void EndParts(Row& row, int depth) LOCKSTEP_REQUIRES(mutex_);
  void Event(char phase, int row, const std::string& name, const std::string& more = "") LOCKSTEP_REQUIRES(mutex_);
  void Write(const std::string& event) LOCKSTEP_REQUIRES(mutex_);
  void Flush() LOCKSTEP_REQUIRES(mutex_);
  Status StopLocked() LOCKSTEP_REQUIRES(mutex_);

  std::atomic<bool> on_ = false;
  Mutex mutex_;
  const ForkGuard fork_;
  UniqueFd file_ LOCKSTEP_GUARDED_BY(mutex_);
  std::string unwritten_ LOCKSTEP_GUARDED_BY(mutex_);
  bool mark_cycles_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool is_empty_ LOCKSTEP_GUARDED_BY(mutex_) = true;  // nothing was written yet
  bool failed_ LOCKSTEP_GUARDED_BY(mutex_) = false;   // something could not be written
  std::chrono::steady_clock::time_point started_ LOCKSTEP_GUARDED_BY(mutex_);
  int rows_ LOCKSTEP_GUARDED_BY(mutex_) = 0;                               // how many there are
  std::unordered_map<std::string, Row> used_ LOCKSTEP_GUARDED_BY(mutex_);  // by the name of a tensor in progress
  // The free ones, by their title.
  std::unordered_map<std::string, std::vector<Row>> free_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
