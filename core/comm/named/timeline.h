#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/fork_guard.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/comm/named/named_batch.h"

namespace lockstep {

// Writes down what a named lane does, for people to look at: a file in Chrome's trace format (chrome://tracing,
// ui.perfetto.dev), which is an array of JSON objects, with a row for each tensor; numbered calls have one together, or
// as many as there are at a time. The names of the parts are Horovod's.
//
//   NEGOTIATE_ALLREDUCE   from the first rank that asks for it until rank 0 has put it into the order
//     0, 1, ...           marks: when the request of this rank came in
//   ALLREDUCE             from there to its end on this rank
//     QUEUE               until what is before it is done
//     EXCHANGE            its batch; tensors that travel together have the same. Of one that fails, there is neither
//   CYCLE_START           marks, in a row of their own: each time that something was put into the order
//
// Times are of this rank's clock, in microseconds since Start. Off until Start; then each call but `on` takes a mutex
// and writes some hundred bytes. What is written is in the file at the end of each exchange, so that of a rank that is
// killed only the closing bracket is missing, which viewers do without. A fork of the process writes nothing.
// Thread-safe.
class Timeline {
 public:
  Timeline() = default;
  ~Timeline() { (void)Stop(); }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Begins a new file, and ends that of before. `mark_cycles`: with CYCLE_START. INVALID_ARGUMENT where the file cannot
  // be written.
  Status Start(const std::string& path, bool mark_cycles);
  // Ends the file; nothing where there is none. RESOURCE_EXHAUSTED where not everything could be written.
  Status Stop();
  bool on() const { return on_.load(std::memory_order_relaxed); }

  // A rank asked for it.
  void Asked(const NamedRequest& request, int rank);
  // They were put into the order.
  void Ordered(const NamedBatch& batch);
  // Its exchange begins, and has ended; or there was none, and `End` alone is called.
  void Begin(const NamedBatch& batch);
  void End(const NamedBatch& batch);
  // Something is put into the order.
  void Cycle();

 private:
  struct Row {
    int number;
    std::string title;
    bool negotiates = false;
    int depth = 0;  // parts that have begun, behind the negotiation
  };

  // All that follow with mutex_ held, and a file.
  bool IsOn() const { return file_.valid(); }
  // Of a tensor that is on its way; RowOf makes it one, of those that are free.
  Row& RowOf(const NamedRequest& request);
  Row* FindRow(const std::string& name);
  Row NewRow(const std::string& title);
  // Ends all that has begun.
  void EndAll(Row& row);
  void EndParts(Row& row, int depth);
  void Event(char phase, int row, const std::string& name, const std::string& more = "");
  void Write(const std::string& event);
  void Flush();
  Status StopLocked();

  std::atomic<bool> on_ = false;
  std::mutex mutex_;
  const ForkGuard fork_;
  UniqueFd file_;                                  // guarded by mutex_
  std::string unwritten_;                          // guarded by mutex_
  bool mark_cycles_ = false;                       // guarded by mutex_
  bool is_empty_ = true;                           // guarded by mutex_: nothing was written yet
  bool failed_ = false;                            // guarded by mutex_: something could not be written
  std::chrono::steady_clock::time_point started_;  // guarded by mutex_
  int rows_ = 0;                                   // guarded by mutex_: how many there are
  std::unordered_map<std::string, Row> used_;      // guarded by mutex_: by the name of a tensor that is on its way
  // guarded by mutex_: those of others, by their title
  std::unordered_map<std::string, std::vector<Row>> free_;
};

}  // namespace lockstep
