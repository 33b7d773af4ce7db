#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/comm/shm/layout.h"
#include "core/comm/shm/peers.h"
#include "core/comm/shm/segment.h"
#include "core/telemetry/lane_counters.h"

namespace lockstep::shm {

// How long a thread checks a peer's flag before it sleeps. Checking takes a core; being woken takes 5 to 50 us. A rank
// chooses its policy when it attaches (attach.cc); peers may have others.
struct WaitPolicy {
  double timeout_s = 300;  // how late a peer may be
  // How long a late peer may be stopped; no value: as long as it may be late.
  std::optional<double> stopped_timeout_s = {};
  int spin_us = 100;  // if each rank has its own core
  int yields = 0;     // if not: how often to yield the core to the other ranks
};

// Announces a rank's progress, waits for its peers' progress, and knows how a wait can fail.
// ```cpp
// waiter.SetOperation(CallKind::kBarrier, "epoch");  // its name in errors
// ... write data for the peers ...
// waiter.Announce();
// LOCKSTEP_RETURN_IF_ERROR(waiter.WaitForAll(waiter.announced()));
// ... read their data ...
// ```
// Progress is a counter in shared memory. All ranks announce the same number of times in the same calls, so "rank p has
// done step n" means "p's counter is at least n". (Modulo 2^32: the difference is compared, and no two ranks are ever
// half of that apart.) A wait spins briefly, then sleeps on a futex for at most 50 ms at a time. Between sleeps it
// checks whether a missing rank has died, left, aborted or failed, and whether its time has passed. The first such
// error breaks the rank for good and is published to the peers in EndReason.
//
// The errors of a wait, in the order in which they are checked:
// ```
// Abort or Leave here, on another thread        CANCELLED
// a missing rank has left                       UNAVAILABLE "rank 1 left the job", and how
// a missing rank's process ended                UNAVAILABLE "rank 1 (process 123) died", or "... on host a) ..."
// a missing rank's connection is closed         UNAVAILABLE "rank 1 (process 123) closed its connection"
// a missing rank's process is stopped           UNAVAILABLE "rank 1 (process 123) has been stopped for 5 s ..."
// any rank has aborted or broken                its code, and its text after its rank
// the time is over                              DEADLINE_EXCEEDED with all ranks that are missing
// ```
// A death is seen by the check after a whole sleep: after about 50 ms of waiting. A stop (SIGSTOP, Ctrl-Z) counts from
// the first check that sees it; time in which this process itself did not run does not count.
//
// Threads: one thread at a time calls Announce, WaitForAll, SetOperation and set_policy; any thread calls Abort, Leave,
// JudgeStopped, broken and BrokenStatus. Owns the peers' sockets and pidfds, and a share of the segment. The destructor
// sends no farewell.
class Waiter {
 public:
  // The names of the ranks in messages: their numbers in the job, [R], and their host if the job has several.
  struct Names {
    std::vector<int> ranks;
    std::string host;
  };

  Waiter(std::shared_ptr<Segment> segment, int rank, Names names, Peers peers, const WaitPolicy& policy);

  // Call it once all ranks are attached and their number of cores is known. Not during a wait.
  void set_policy(const WaitPolicy& policy) { policy_ = policy; }

  // Sets the operation of the following waits, for their errors. `name` has to outlive them.
  void SetOperation(CallKind kind, std::string_view name) {
    kind_ = shown_.value_or(kind);
    name_ = name;
  }
  // For a call that consists of several calls: sets the name for errors; without a value each call has its own name.
  void SetNameInErrors(std::optional<CallKind> kind) { shown_ = kind; }
  // Sets additional seconds for the following waits, if a peer may itself wait for another rank that should be named
  // first.
  void set_patience(double seconds) { patience_s_ = seconds; }

  // Announces to the peers that the next step is done: a peer that sees it also sees all earlier writes. Never waits:
  // it is a store, and a system call if a peer sleeps.
  void Announce();
  // Returns the number of announced steps, modulo 2^32: the number of the last one.
  uint32_t announced() const { return announced_; }

  // Waits until all peers have announced `step`; then all their earlier writes are visible here. Begins with the next
  // rank, so that not all ranks check the same flag. The policy's time counts for all peers together, from the first
  // sleep on. A single rank never waits. After an error here the rank is broken.
  Status WaitForAll(uint32_t step) { return WaitForAll(step, nullptr); }
  // The same for the start of a call: the waits are counted (CountWaits).
  Status AwaitArrivals(uint32_t step) { return WaitForAll(step, counters_); }

  // Adds the waits for late ranks to `counters`, which has to outlive this object; null: to nothing. Waits that end
  // within the first checks, a microsecond or two, do not count.
  void CountWaits(LaneCounters* counters) { counters_ = counters; }
  // Sets whether the peer for which this rank waits is the late one; false if it only waits for others itself.
  void set_peers_are_late(bool value) { peers_are_late_ = value; }

  // Returns UNAVAILABLE with the first peer that has been stopped for too long, missing or not. For code that waits
  // outside of collectives: call it some times per second. Any thread.
  Status JudgeStopped();

  const Peers& peers() const { return peers_; }
  int NameOf(int rank) const { return names_.ranks[rank]; }

  // Returns whether this rank has ended. Cheap: called before every call.
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  // Returns the first error, which every later call returns; OK while there is none.
  Status BrokenStatus() const;

  // Ends the waits of this rank and of the peers with CANCELLED and `why`. Has no effect if the rank is already broken.
  // Any thread; a wait here notices it at its next check, within 50 ms.
  void Abort(const Status& why);
  // Does the same for an end that was seen elsewhere, with its own code.
  void End(const Status& error);
  // Leaves in good order, unless the rank has already ended. Peers that wait for a step that this rank has announced
  // are not disturbed. Peers that wait for a later step get `how`.
  void Leave(std::string_view how);

 private:
  // Acquire: writes of `peer` before it announced `step` may be read after this.
  bool Reached(int peer, uint32_t step) const {
    const uint32_t progress = segment_->block(peer).flag.progress.load(std::memory_order_acquire);
    return static_cast<int32_t>(progress - step) >= 0;
  }
  // Returns the i-th rank after this one, from 1 on.
  int PeerAt(int i) const { return rank_ + i < size_ ? rank_ + i : rank_ + i - size_; }
  Status WaitForAll(uint32_t step, LaneCounters* counters) {
    for (int i = 1; i < size_; ++i) {
      if (!Reached(PeerAt(i), step)) [[unlikely]]
        return WaitFrom(i, step, counters);
    }
    return OkStatus();
  }
  // The slow way, for PeerAt(first) and those after it: spins, then sleeps, for each.
  Status WaitFrom(int first, uint32_t step, LaneCounters* counters);
  // Sleeps and judges in turn until the peer arrives or the wait has failed.
  Status SleepUntil(int peer, uint32_t step, const Deadline& deadline);
  // The result of a spin. A wait that ends within the first checks is brief, and is not counted.
  struct Spun {
    bool reached;
    bool briefly;
    int64_t begin_ns;
  };
  // Ends when the peer arrives. Checks at least a few times, regardless of the policy.
  Spun Spin(int peer, uint32_t step) const;
  // Sleeps until the peer announces something, `seconds` (less than 1) have passed, or for no reason. Returns true if
  // its time passed, false if it was woken.
  bool Sleep(int peer, uint32_t step, double seconds);
  // Returns why the wait cannot succeed; OK while it can. `cause` becomes the text for the peers: the error itself, or
  // a peer's own text if that peer reported it. So the first cause is passed on, and not a chain of reports.
  Status Judge(uint32_t step, bool look_for_deaths, const Deadline& deadline, std::string& cause);
  // Returns what this rank itself sees of a peer that has not done the step.
  Status JudgeMissing(int peer, bool look_for_deaths);
  // Returns a text if the peer is stopped for too long, else "".
  std::string StoppedTooLong(int peer);
  std::string Operation() const;
  // Returns " on host a", or nothing in a job of one host.
  std::string OnHost() const;
  // Returns the same for the end of a sentence: " (on host a)".
  std::string HostSuffix() const;
  // Makes `error` the rank's end, unless it has one already, publishes `cause` to the peers, and wakes all. Returns the
  // rank's end.
  Status Break(RankState state, const Status& error, const std::string& cause);
  void WakeAll();

  const std::shared_ptr<Segment> segment_;
  const int rank_;
  const int size_;
  const Names names_;
  const Peers peers_;
  // These belong to the waiting thread.
  WaitPolicy policy_;
  uint32_t announced_ = 0;
  double patience_s_ = 0;
  CallKind kind_ = CallKind::kBarrier;
  std::optional<CallKind> shown_;
  std::string_view name_;
  LaneCounters* counters_ = nullptr;
  bool peers_are_late_ = true;
  // The observed stop of a peer: the time of the last check, the peer's progress, and the duration of the stop.
  struct Stop {
    Deadline::Clock::time_point looked = {};
    uint32_t progress = 0;
    std::optional<double> seconds;  // no value: it was not stopped
  };
  Mutex stops_mutex_;
  std::array<Stop, kMaxRanks> stops_ LOCKSTEP_GUARDED_BY(stops_mutex_);

  // Set (release) after first_error_ and never reset: a reader of true (acquire) finds the error, under the mutex.
  std::atomic<bool> broken_{false};
  // Orders ends from several threads, so that one of them is the first. It guards first_error_ and the writing of this
  // rank's EndReason and state.
  mutable Mutex mutex_;
  Status first_error_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::shm
