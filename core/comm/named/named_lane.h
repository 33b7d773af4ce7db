#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/base/fork_guard.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/named/control_links.h"
#include "core/comm/named/named_device_exchange.h"
#include "core/comm/named/named_exchange.h"
#include "core/comm/named/sequencer.h"
#include "core/comm/named/shared_links.h"
#include "core/comm/named/stall_watch.h"
#include "core/comm/named/timeline.h"
#include "core/comm/options.h"

// Folder named/: the named lane. Ranks request collectives in any order, and rank 0 matches them by name.

namespace lockstep {

struct NamedLaneOptions {
  // SequencerOptions::fusion_bytes.
  int64_t fusion_bytes = int64_t{64} << 20;
  // The seconds after which rank 0 warns about a request that some ranks have not made; it warns again after each
  // further such period. No value: it never warns.
  std::optional<double> stall_warning_s = 60;
  // The seconds after which such a request ends with DEADLINE_EXCEEDED on the ranks that made it; no value: it waits
  // without a limit.
  std::optional<double> stall_timeout_s = {};
  // The name of this lane among the process's lanes, for messages: "process set 2 (ranks 1 and 3 of the job)"; empty if
  // it is the only one. Lanes with different labels do not connect to each other. Rank numbers in messages are the
  // lane's.
  std::string label;
  // Receives the warnings, on rank 0; called on the lane's thread.
  std::function<void(const std::string&)> warn = [](const std::string&) {};
  // Makes the exchange for tensors on GPUs, at the lane's first batch of such tensors; called by the driver. Null: this
  // rank has no GPU, and all ranks get an error with its number.
  MakeNamedDeviceExchange devices = nullptr;
};

// Collectives that are matched by name, in any order on each rank: the lane of Horovod's operations. (The other lane,
// job/lane.h, is for ranks that know their order; it needs no messages about it.)
//
//   rank 1                                  rank 0
//   Submit ─── request, control link ───► Submit ──► Sequencer: complete? do ranks agree?
//                                                      │
//   thread ◄── batch, control link ─────────── thread ◄┤ batch
//     ▼                                          ▼
//   NamedExchange ◄──── communicator ────► NamedExchange
//
// Batches of tensors on GPUs go to a NamedDeviceExchange. It puts them into streams, and the driver continues; their
// requests end later, on a thread of that exchange.
//
// Requests go to rank 0 from the thread that makes them. There the sequencer collects them, from rank 0's own callers
// and from the links. If a request makes its name complete while the lane is idle, the thread that handles it tells all
// ranks what to do. Requests that become complete during an exchange are collected, and go together afterwards, without
// a timer. Nothing is sent while no rank requests anything.
//
// One thread at a time drives the lane: it listens to the peers and runs the exchanges. A caller whose request is the
// only one drives for as long as a small exchange takes, because each change of threads costs more than that.
// Everything that takes longer, or is large, is left to the lane's thread. That thread is parked while this rank waits
// for nothing.
//
// Errors. If ranks disagree, they get FAILED_PRECONDITION. Arguments that are bad on one rank fail on all, with the
// name, the ranks and the values. In both cases the lane continues. It also continues if a rank has no memory
// (RESOURCE_EXHAUSTED, for that rank; for all ranks if it also has none for its part of the exchange). A rank that died
// or left ends the lane for good: all current and later requests get UNAVAILABLE, which names it, whether or not
// anything is exchanged at that time.
//
// A fork of a process takes no part in its lanes: there, requests get FAILED_PRECONDITION, and every other function
// does nothing. A fork must not destroy a lane: it may have been made while a thread, which it does not have, changed
// the lane's members. Thread-safe.
class NamedLane {
 public:
  // Connects to the other ranks like Context::Create, and returns its errors; RESOURCE_EXHAUSTED also if no further
  // thread can be started. The communicator belongs to this lane only; its purpose is the purpose of a lane with this
  // label.
  static Result<std::unique_ptr<NamedLane>> Create(ContextOptions context, const NamedLaneOptions& options);
  // Like Leave; waits until the current batch has ended, with CANCELLED. Not within a function that a request calls.
  ~NamedLane();

  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }
  const std::string& label() const { return options_.label; }

  // Memory for results, which then need no pages of their own; like Communicator::AllocateShared. `shared_bytes` is the
  // total.
  std::shared_ptr<SharedBuffer> AllocateShared(int64_t bytes) {
    return fork_.InFork() ? nullptr : communicator_->AllocateShared(bytes);
  }
  int64_t shared_bytes() const { return shared_bytes_; }

  // Requests `works`. Waits at most 0.1 ms for the peers' requests, and as long as a small exchange takes. Errors that
  // this rank can see by itself (negative counts, too many splits, an impossible root, a type without such a reduction)
  // are sent to all ranks, which get them as their error. If this rank already waits for a request of that name, the
  // error is only its own: that work's `done` gets INVALID_ARGUMENT here. All members of its group in this call also
  // get it. The same holds for a name that is too long. The lane sets the tickets, and returns them for Cancel. A
  // request of kind kJoin needs no name.
  std::vector<uint64_t> Submit(std::vector<NamedWork> works);
  uint64_t Submit(NamedWork work);

  // This rank no longer wants to wait. If some rank has not made the request yet, the ranks that made it get CANCELLED
  // with `why`. Its group also gets it. A join ends only for this rank, which takes part again. Otherwise the request
  // continues. Does nothing for a ticket that has ended.
  void Cancel(uint64_t ticket, const std::string& why);
  // The same for the join that this rank waits in; does nothing without one.
  void CancelJoin(const std::string& why);

  // How often it was called with this text before. It gives names to calls that have none. The names are the same on
  // all ranks that make the same calls in the same order. The end of a join starts again with 0, as joined ranks make
  // no calls.
  uint64_t NextNumber(const std::string& text);

  // Leaves the job: the requests that this rank waits for end with CANCELLED, and the others get UNAVAILABLE. Does not
  // wait for it. `how` tells the waiting ranks why this one left, like Communicator::Leave.
  void Leave(std::string_view how = {});

  // The number of this rank's collectives that have not ended.
  int64_t pending() const;

  // The error that ended the lane for good; OK while it works, and after Leave.
  Status broken() const;

  // Records what the lane does, on rank 0; does nothing on the others. Returns the errors of Timeline::Start and Stop.
  Status StartTimeline(const std::string& path, bool mark_cycles);
  Status StopTimeline();

 private:
  NamedLane(std::unique_ptr<Communicator> communicator, int64_t shared_bytes, const NamedLaneOptions& options);

  // For each of these works, the reason why it cannot be requested now; OK if it can.
  std::vector<Status> Refuse(const std::vector<NamedWork>& works) const LOCKSTEP_REQUIRES(mutex_);
  // Sends this rank's requests to rank 0.
  void Send(std::vector<NamedRequest> requests) LOCKSTEP_REQUIRES(mutex_);
  void CancelLocked(uint64_t ticket, const std::string& why) LOCKSTEP_REQUIRES(mutex_);
  void Run();
  // After something new: sends the complete requests if the driver has nothing to do. Returns whether to wake the
  // thread.
  bool ResumeDriver() LOCKSTEP_REQUIRES(mutex_);
  // Returns whether the thread is needed.
  bool HasWork() const LOCKSTEP_REQUIRES(mutex_);
  // A caller's turn to drive, until its requests have ended; driven_ is set for it.
  void Drive(const std::vector<uint64_t>& tickets) LOCKSTEP_EXCLUDES(mutex_);
  // Whether this thread drives a lane, this one or another one. Within that, it may make requests but must not wait.
  static bool& ThisThreadDrives();
  // The thread's wait, during which mutex_ is released. True: there is work and no driver. False: it is time to read
  // what the peers sent.
  bool WaitForWork() LOCKSTEP_REQUIRES(mutex_);
  // While answers are awaited, looks for events for a moment before the thread sleeps. Sets `seconds` to 0 if there is
  // something to do. As in ControlLinks::Await, no value means no limit.
  std::vector<ControlLinks::Event> SpinForEvents(std::optional<double>* seconds);
  // Handles a message that arrived. The batches in it are added to todo_.
  void Handle(const ControlLinks::Event& event) LOCKSTEP_EXCLUDES(mutex_);
  // The error with which this message, or the closed link, ends the lane; nothing if it does not end it.
  std::optional<Status> EndIn(const ControlLinks::Event& event) const;
  // On rank 0: sends the complete requests to all ranks, and adds them to todo_.
  void Sequence() LOCKSTEP_REQUIRES(mutex_);
  void DoAll() LOCKSTEP_EXCLUDES(mutex_);
  void Do(const NamedBatch& batch) LOCKSTEP_EXCLUDES(mutex_);
  // A batch in the streams of the device, until all of its requests have ended.
  struct OnDevice {
    OnDevice(const NamedBatch& of, std::vector<std::unique_ptr<NamedWork>> own)
        : batch(of), works(std::move(own)), left(batch.entries.size()) {}
    NamedBatch batch;
    std::vector<std::unique_ptr<NamedWork>> works;
    std::atomic<size_t> left;  // the entries that have not ended
  };
  void DoOnDevice(const NamedBatch& batch, std::vector<std::unique_ptr<NamedWork>> works) LOCKSTEP_EXCLUDES(mutex_);
  // Makes device_, once; an error is the same on all ranks.
  Status MakeDevice() LOCKSTEP_EXCLUDES(mutex_);
  void EndOnDevice(const NamedDeviceExchange& device, OnDevice& of, size_t entry, const Status& status,
                   const NamedWork::Outcome& outcome) LOCKSTEP_EXCLUDES(mutex_);
  // Waits until the communicator is free for a batch of tensors on CPUs.
  void ReleaseHost() LOCKSTEP_EXCLUDES(mutex_);
  // The cause of an error of a request on the device, as CauseOf for batches that the driver runs.
  Status CauseOnDevice(const NamedRequest& request, const Status& status) LOCKSTEP_EXCLUDES(mutex_);
  // The device's part of Break. Requests get a moment to end by themselves: a lost peer may have done its part.
  void EndDevice(NamedDeviceExchange& device, bool leaves, const std::string& farewell, const Status& why)
      LOCKSTEP_EXCLUDES(mutex_);
  // Counts how long these requests of this rank have waited for other ranks; returns since when, in SteadyNs.
  int64_t CountWait(const NamedBatch& batch, const std::vector<NamedWork*>& works);
  // The cause of this status of an exchange: a rank that fails says more over its link than the communicator does.
  Status CauseOf(const Status& status) LOCKSTEP_EXCLUDES(mutex_);
  // Ends all requests of this rank with `cause`, and tells the others. Requests on the device end on its thread.
  void Break(const Status& cause) LOCKSTEP_EXCLUDES(mutex_);

  const ForkGuard fork_;
  const std::unique_ptr<Communicator> communicator_;
  const int64_t shared_bytes_;
  const NamedLaneOptions options_;
  ControlLinks links_;
  SharedLinks shared_links_{links_};  // awaited by the driver, and by the device's exchange
  NamedExchange exchange_;            // used by the driver
  int64_t last_end_ns_ = 0;           // used by the driver: the end of the last batch that it has run itself
  Timeline timeline_;                 // used by any thread; only on rank 0
  StallWatch stalls_;                 // used only by the thread

  mutable Mutex mutex_;
  Sequencer sequencer_ LOCKSTEP_GUARDED_BY(mutex_);
  std::deque<NamedBatch> todo_ LOCKSTEP_GUARDED_BY(mutex_);                                     // what is to be done
  std::unordered_map<uint64_t, std::unique_ptr<NamedWork>> works_ LOCKSTEP_GUARDED_BY(mutex_);  // by ticket
  std::unordered_map<std::string, uint64_t> names_ LOCKSTEP_GUARDED_BY(mutex_);  // of works_ but the join
  std::optional<uint64_t> join_ LOCKSTEP_GUARDED_BY(mutex_);                     // the ticket of that
  std::unordered_map<std::string, uint64_t> numbers_ LOCKSTEP_GUARDED_BY(mutex_);
  uint64_t next_ticket_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  bool driven_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // some thread drives
  bool idle_ LOCKSTEP_GUARDED_BY(mutex_) = false;    // the driver has nothing to do
  bool sleeps_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // the driver sleeps, and looks for no events
  bool leaves_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::string farewell_ LOCKSTEP_GUARDED_BY(mutex_);  // how it leaves
  Status broken_ LOCKSTEP_GUARDED_BY(mutex_);
  // Made by the driver, and destroyed with the lane. Null: it had no batch yet.
  std::unique_ptr<NamedDeviceExchange> device_ LOCKSTEP_GUARDED_BY(mutex_);
  int64_t on_device_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // entries that have not ended there
  CondVar device_changed_;                             // on_device_ has become 0

  std::thread thread_;
};

}  // namespace lockstep
