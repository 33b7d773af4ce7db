#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/comm/context.h"
#include "core/comm/control_links.h"
#include "core/comm/named_exchange.h"
#include "core/comm/sequencer.h"
#include "core/comm/timeline.h"

namespace lockstep {

struct NamedLaneOptions {
  // SequencerOptions::fusion_bytes.
  int64_t fusion_bytes = int64_t{64} << 20;
  // After how many seconds rank 0 warns of a request that some ranks have not made, and again each time as many have
  // passed; 0: never.
  double stall_warning_s = 60;
  // After how many seconds such a request ends with DEADLINE_EXCEEDED on the ranks that made it; 0: never.
  double stall_timeout_s = 0;
  // Takes the warnings, on rank 0; on the lane's thread.
  std::function<void(const std::string&)> warn = [](const std::string&) {};
};

// Collectives that are matched by name, in whatever order each rank asks for them: the lane of Horovod's operations.
// (The other one, lane.h, is for ranks that know their order; it needs no words about it.)
//
//   rank 1                                  rank 0
//   Submit ──► queue                        Submit ──► queue
//                │ request                               │
//                └────────── control link ────────► Sequencer: complete? do ranks agree?
//                ┌────────── control link ◄───────────── │ batch
//                ▼                                       ▼
//           NamedExchange ◄──── communicator ────► NamedExchange
//
// One thread on each rank. Rank 0's also keeps the order: it takes in what the ranks ask for, says to all what is to be
// done, and takes part in it. There is no clock and no idle traffic: a thread sleeps until its rank asks for something
// or a message comes, and what is asked for while a batch runs gathers for the next. A request costs a message to rank
// 0 and one back, beside the exchange itself.
//
// Errors. Ranks that disagree get FAILED_PRECONDITION, and arguments that are bad on one rank fail on all, with the
// name, the ranks and the values; the lane goes on. A rank that died or left ends the lane for good: all requests, and
// those that come later, get UNAVAILABLE that names it. Thread-safe.
class NamedLane {
 public:
  // Meets the other ranks, as Context::Create, whose errors it returns. The communicator is the lane's alone.
  static Result<std::unique_ptr<NamedLane>> Create(const ContextOptions& context, const NamedLaneOptions& options);
  // As Leave; waits until the batch that runs has ended, with CANCELLED. Not on the lane's own thread.
  ~NamedLane();

  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }

  // Asks for what `work` says; returns at once. What this rank can see to be wrong by itself (negative counts, splits
  // that are too many, a root that is none, a type without such a reduction) is told to all ranks, which get it as
  // their error. A name that this rank waits for already is this rank's own error: its `done` gets INVALID_ARGUMENT
  // here. The ticket is set by the lane, and returned for Cancel. A request of kind kJoin needs no name.
  uint64_t Submit(NamedWork work);

  // This rank no longer wants to wait: where a rank has not asked for it yet, those that have get CANCELLED with `why`.
  // Otherwise it goes its way. Nothing for a ticket that has ended.
  void Cancel(uint64_t ticket, const std::string& why);

  // Leaves the job: what this rank waits for ends with CANCELLED, and the others get UNAVAILABLE. Does not wait for it.
  void Leave();

  // Collectives of this rank that have not ended.
  int64_t pending() const;

  // What ended the lane for good; OK while it works, and after Leave.
  Status broken() const;

  // Writes down what the lane does, on rank 0; nothing on the others. Errors of Timeline::Start and Stop.
  Status StartTimeline(const std::string& path, bool mark_cycles);
  Status StopTimeline();

 private:
  NamedLane(std::unique_ptr<Communicator> communicator, const NamedLaneOptions& options);

  // What this rank can see to be wrong with its request; OK where nothing is.
  Status Check(const NamedRequest& request) const;
  void Run();
  // Takes what was submitted and cancelled: into the sequencer, or to rank 0. Whether there was anything.
  bool TakeIn();
  // Wakes the thread where it sleeps. `lock` is held, and released.
  void WakeUp(std::unique_lock<std::mutex> lock);
  void Handle(const ControlLinks::Event& event);
  // On rank 0: what is complete goes to all, and is done.
  bool Sequence();
  void Do(const NamedBatch& batch);
  // On rank 0: warns, or gives up. Seconds until it has to be called again; negative: not before something comes.
  double WatchStalls();
  // Ends everything of this rank with `why`, and on rank 0 tells the others.
  void Break(const Status& why);

  const std::unique_ptr<Communicator> communicator_;
  const NamedLaneOptions options_;
  ControlLinks links_;
  // Of the thread alone.
  Sequencer sequencer_;
  NamedExchange exchange_;
  Timeline timeline_;                               // of any thread; on rank 0 alone
  std::unordered_map<std::string, double> warned_;  // when a request was warned of
  bool ended_ = false;                              // broken_ is an error

  mutable std::mutex mutex_;
  std::vector<NamedRequest> submitted_;                             // guarded by mutex_: not yet taken in
  std::vector<std::pair<std::string, std::string>> cancelled_;      // guarded by mutex_: likewise; names and why
  std::unordered_map<uint64_t, std::unique_ptr<NamedWork>> works_;  // guarded by mutex_: by ticket
  std::unordered_map<std::string, uint64_t> names_;                 // guarded by mutex_: of works_
  uint64_t next_ticket_ = 0;                                        // guarded by mutex_
  bool sleeps_ = false;                                             // guarded by mutex_: Submit has to wake the thread
  bool leaves_ = false;                                             // guarded by mutex_
  Status broken_;                                                   // guarded by mutex_

  std::thread thread_;
};

}  // namespace lockstep
