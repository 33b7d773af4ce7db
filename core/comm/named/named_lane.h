#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/base/fork_guard.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/named/control_links.h"
#include "core/comm/named/named_exchange.h"
#include "core/comm/named/sequencer.h"
#include "core/comm/named/stall_watch.h"
#include "core/comm/named/timeline.h"
#include "core/comm/options.h"

// Folder named/: the named lane. Ranks ask for collectives in any order, and rank 0 matches them by name.

namespace lockstep {

struct NamedLaneOptions {
  // SequencerOptions::fusion_bytes.
  int64_t fusion_bytes = int64_t{64} << 20;
  // After how many seconds rank 0 warns of a request that some ranks have not made, and again each time as many have
  // passed; 0: never.
  double stall_warning_s = 60;
  // After how many seconds such a request ends with DEADLINE_EXCEEDED on the ranks that made it; 0: never.
  double stall_timeout_s = 0;
  // Which of the lanes of a process this is, for messages: "process set 2 (ranks 1 and 3 of the job)"; empty: the only
  // one. Ranks whose lanes are called otherwise don't meet. Ranks in messages are those of the lane.
  std::string label;
  // Takes the warnings, on rank 0; on the lane's thread.
  std::function<void(const std::string&)> warn = [](const std::string&) {};
};

// Collectives that are matched by name, in whatever order each rank asks for them: the lane of Horovod's operations.
// (The other one, job/lane.h, is for ranks that know their order; it needs no words about it.)
//
//   rank 1                                  rank 0
//   Submit ─── request, control link ───► Submit ──► Sequencer: complete? do ranks agree?
//                                                      │
//   thread ◄── batch, control link ─────────── thread ◄┤ batch
//     ▼                                          ▼
//   NamedExchange ◄──── communicator ────► NamedExchange
//
// Requests go to rank 0 from whoever makes them. There the sequencer is fed by all: by rank 0's own callers, and with
// what comes in; whoever makes a request complete while nobody is busy tells all ranks what is to be done. What becomes
// complete meanwhile gathers, and goes together when that is done: that is all the clock there is. Nothing travels
// while nobody asks for anything.
//
// One at a time drives the lane: listens to the peers and does the exchanges. A caller whose request is the only one
// drives for as long as a small exchange takes, since each change of threads costs more than that; whatever takes
// longer, or is large, is left to the lane's thread, which is parked while this rank waits for nothing.
//
// Errors. Ranks that disagree get FAILED_PRECONDITION, and arguments that are bad on one rank fail on all, with the
// name, the ranks and the values; the lane goes on. So it does where a rank has no memory (RESOURCE_EXHAUSTED, for that
// rank, or for all where it has none for its part either). A rank that died or left ends the lane for good: all
// requests, and those that come later, get UNAVAILABLE that names it, whether or not anything is exchanged meanwhile.
//
// A fork of a process has no part in its lanes: there, requests get FAILED_PRECONDITION, and all else does nothing.
// Thread-safe.
class NamedLane {
 public:
  // Meets the other ranks, as Context::Create, whose errors it returns; RESOURCE_EXHAUSTED also where there can't be
  // another thread. The communicator is the lane's alone, and the purpose that of a lane with this label.
  static Result<std::unique_ptr<NamedLane>> Create(ContextOptions context, const NamedLaneOptions& options);
  // As Leave; waits until the batch that runs has ended, with CANCELLED. Not within what a request calls.
  ~NamedLane();

  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }
  const std::string& label() const { return options_.label; }

  // Memory for results, which need no pages of their own then; as Communicator::AllocateShared. `shared_bytes`: how
  // much there is in all.
  std::shared_ptr<SharedBuffer> AllocateShared(int64_t bytes) {
    return fork_.InFork() ? nullptr : communicator_->AllocateShared(bytes);
  }
  int64_t shared_bytes() const { return shared_bytes_; }

  // Asks for what `works` say; waits 0.1 ms at most for peers to ask, and
  // for as long as a small exchange takes. What this rank can see to be wrong by itself
  // (negative counts, splits that are too many, a root that is none, a type without such a reduction) is told to all
  // ranks, which get it as their error. A name that this rank waits for already is this rank's own error: that work's
  // `done` gets INVALID_ARGUMENT here, and so do all members of its group that come with it; likewise with a name that
  // is too long. The tickets are set by the lane, and returned for Cancel. A request of kind kJoin needs no name.
  std::vector<uint64_t> Submit(std::vector<NamedWork> works);
  uint64_t Submit(NamedWork work);

  // This rank no longer wants to wait: where a rank has not asked for it yet, those that have get CANCELLED with `why`,
  // and so does its group. Of a join, this rank alone, which is back then. Otherwise it goes its way. Nothing for a
  // ticket that has ended.
  void Cancel(uint64_t ticket, const std::string& why);
  // The same for the join that this rank waits in; nothing without one.
  void CancelJoin(const std::string& why);

  // How often it was asked with this text before: what makes names of calls that have none, the same on all ranks that
  // make the same ones in the same order. The end of a join begins anew with 0, as ranks that have joined make none.
  uint64_t NextNumber(const std::string& text);

  // Leaves the job: what this rank waits for ends with CANCELLED, and the others get UNAVAILABLE. Does not wait for it.
  // `how` says to who waits for it why it is gone, as Communicator::Leave does.
  void Leave(std::string_view how = {});

  // Collectives of this rank that have not ended.
  int64_t pending() const;

  // What ended the lane for good; OK while it works, and after Leave.
  Status broken() const;

  // Writes down what the lane does, on rank 0; nothing on the others. Errors of Timeline::Start and Stop.
  Status StartTimeline(const std::string& path, bool mark_cycles);
  Status StopTimeline();

 private:
  NamedLane(std::unique_ptr<Communicator> communicator, int64_t shared_bytes, const NamedLaneOptions& options);

  // Gives a work its ticket and puts it where its answer will find it.
  void Register(NamedWork work);
  // Of each of these works, why it can't be asked for here and now; OK where it can. With mutex_ held.
  std::vector<Status> Refuse(const std::vector<NamedWork>& works) const;
  // Says to rank 0 what this rank asks for. With mutex_ held.
  void Send(std::vector<NamedRequest> requests);
  void CancelLocked(uint64_t ticket, const std::string& why);
  void Run();
  // With mutex_ held, behind something new: sends what is complete where who drives has nothing to do. Whether to wake
  // the thread.
  bool GoOn();
  // With mutex_ held: whether the thread is needed.
  bool HasWork() const;
  // A caller's turn, until what it asks for has ended; driven_ is set for it.
  void Drive(const std::vector<uint64_t>& tickets);
  // Whether this thread drives a lane, this one or another: from within it may ask for more, and must not wait there.
  static bool& ThisThreadDrives();
  // The thread's wait, with mutex_ held at both ends, for something to do that nobody drives: true. False where it is
  // time to see what peers say.
  bool Park(std::unique_lock<std::mutex>& lock);
  // While answers are awaited, looks for what comes for a moment before the thread sleeps. Sets `seconds` to 0 where
  // there is something to do.
  std::vector<ControlLinks::Event> LookOut(double* seconds);
  // A message that came in. What it says to do is put into todo_.
  void Handle(const ControlLinks::Event& event);
  // What of a message, or its absence, ends the lane; nothing where it does not.
  std::optional<Status> EndIn(const ControlLinks::Event& event) const;
  // On rank 0, with mutex_ held: what is complete goes to all ranks, and into todo_.
  void Sequence();
  // All that follow without mutex_.
  void DoAll();
  void Do(const NamedBatch& batch);
  // What ended an exchange with this status: a rank that breaks says more over its link than the communicator does.
  Status CauseOf(const Status& status);
  // Ends everything of this rank with `cause`, and tells the others.
  void Break(const Status& cause);

  const ForkGuard fork_;
  const std::unique_ptr<Communicator> communicator_;
  const int64_t shared_bytes_;
  const NamedLaneOptions options_;
  ControlLinks links_;      // awaited by who drives
  NamedExchange exchange_;  // of who drives
  Timeline timeline_;       // of any thread; on rank 0 alone
  StallWatch stalls_;       // of the thread alone

  mutable std::mutex mutex_;
  Sequencer sequencer_;                                             // guarded by mutex_
  std::deque<NamedBatch> todo_;                                     // guarded by mutex_: what is to be done
  std::unordered_map<uint64_t, std::unique_ptr<NamedWork>> works_;  // guarded by mutex_: by ticket
  std::unordered_map<std::string, uint64_t> names_;                 // guarded by mutex_: of works_ but the join
  std::optional<uint64_t> join_;                                    // guarded by mutex_: the ticket of that
  std::unordered_map<std::string, uint64_t> numbers_;               // guarded by mutex_
  uint64_t next_ticket_ = 0;                                        // guarded by mutex_
  bool driven_ = false;                                             // guarded by mutex_: somebody drives
  bool idle_ = false;                                               // guarded by mutex_: and has nothing to do
  bool sleeps_ = false;                                             // guarded by mutex_: nor looks out
  bool leaves_ = false;                                             // guarded by mutex_
  std::string farewell_;                                            // guarded by mutex_: how it leaves
  Status broken_;                                                   // guarded by mutex_

  std::thread thread_;
};

}  // namespace lockstep
