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
  // Its exchange begins, and has ended. If there was no exchange, only `End` is called.
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

  // All of the following need mutex_ held, and a file.
  bool IsOn() const { return file_.valid(); }
  // The row of a tensor in progress; RowOf makes it one, from the free rows.
  Row& RowOf(const NamedRequest& request);
  Row* FindRow(const std::string& name);
  Row NewRow(const std::string& title);
  // Ends all parts that have begun.
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
  std::unordered_map<std::string, Row> used_;      // guarded by mutex_: by the name of a tensor in progress
  // guarded by mutex_: the free ones, by their title
  std::unordered_map<std::string, std::vector<Row>> free_;
};

}  // namespace lockstep
