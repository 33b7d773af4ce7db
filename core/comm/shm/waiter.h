#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/shm/layout.h"
#include "core/comm/shm/peers.h"
#include "core/comm/shm/segment.h"

namespace lockstep::shm {

// How long to look for a peer's flag before the thread sleeps. Looking costs a core; being woken costs some 5 to 50 us.
// A rank picks its policy when it attaches (attach.cc); peers need not have the same.
struct WaitPolicy {
  double timeout_s = 300;        // how late a peer may be
  double stopped_timeout_s = 0;  // how long one that is late may be stopped; 0: as long as it may be late
  int spin_us = 100;             // where each rank has a core of its own
  int yields = 0;  // where it has not: times to offer the core to the others, who may be about to raise the flag
};

// The heartbeat of a rank: announces its progress, waits for that of the peers, and knows how a wait ends badly.
//
//   waiter.SetOperation(CallKind::kBarrier, "epoch");  // what errors will call it
//   ... write what the peers are to see ...
//   waiter.Announce();
//   LOCKSTEP_RETURN_IF_ERROR(waiter.WaitForAll(waiter.announced()));
//   ... read what they wrote ...
//
// Progress is a counter in shared memory. All ranks announce the same number of times in the same calls, so "rank p has
// done step n" is "p's counter is at least n" (modulo 2^32: the difference is looked at, and no two ranks are ever half
// of that apart). A wait spins briefly, then sleeps on a futex for at most 50 ms at a time. Between sleeps it looks
// whether a rank that is still missing has died, left, aborted or failed, and whether its time is over. The first such
// error breaks the rank for good and is told to the peers through LastWords.
//
// How a wait ends, where it does not end well, in the order in which it is looked for:
//   Abort or Leave here, on another thread        CANCELLED
//   a missing rank has left                       UNAVAILABLE "rank 1 left the job", and how
//   a missing rank's process ended                UNAVAILABLE "rank 1 (process 123) died", or "... on host a) ..."
//   a missing rank's connection is closed         UNAVAILABLE "rank 1 (process 123) closed its connection"
//   a missing rank's process is stopped           UNAVAILABLE "rank 1 (process 123) has been stopped for 5 s ..."
//   any rank has aborted or broken                its code, and its words behind its rank
//   the time is over                              DEADLINE_EXCEEDED with all ranks that are missing
// A death is seen by the look after a whole sleep: within some 50 ms of waiting. A stop (SIGSTOP, Ctrl-Z) counts from
// the first look that sees it; time in which this process did not run itself does not.
//
// Threads: Announce, WaitForAll, SetOperation and set_policy by one thread at a time; Abort, Leave, broken and
// BrokenStatus by any. Owns the peers' sockets and pidfds, and a share of the segment; the destructor says no farewell.
class Waiter {
 public:
  // How messages call the ranks: by their numbers in the job, [R], and by their host where the job has several.
  struct Names {
    std::vector<int> ranks;
    std::string host;
  };

  Waiter(std::shared_ptr<Segment> segment, int rank, Names names, Peers peers, const WaitPolicy& policy);

  // Once all ranks are attached and their number of cores is known. Not during a wait.
  void set_policy(const WaitPolicy& policy) { policy_ = policy; }

  // What the following waits are for, for their errors. `name` has to outlive them.
  void SetOperation(CallKind kind, std::string_view name) {
    kind_ = shown_.value_or(kind);
    name_ = name;
  }
  // Of a call that is made of several: what errors name in their place. Nothing: each for itself.
  void ShowAs(std::optional<CallKind> kind) { shown_ = kind; }
  // Seconds more than the policy's for the following waits: where a peer may itself wait for somebody, who is to be
  // named before it.
  void set_patience(double seconds) { patience_s_ = seconds; }

  // Says to the peers that the next step is done: all that was written before is visible to who sees it. Never waits: a
  // store, and a system call where a peer sleeps.
  void Announce();
  // How many steps were announced, modulo 2^32: the number of the last one.
  uint32_t announced() const { return announced_; }

  // Waits until all peers have announced `step`; then all that they wrote before it is visible here. Begins with the
  // next rank, so that not all ranks look at the same flag. The time of the policy counts for all peers together, from
  // the first sleep on; a rank that is alone never waits. After an error here the rank is broken.
  Status WaitForAll(uint32_t step) {
    for (int i = 1; i < size_; ++i) {
      if (!Reached(PeerAt(i), step)) [[unlikely]]
        return WaitFrom(i, step);
    }
    return OkStatus();
  }

  // For who waits outside of collectives, some times a second and on the thread that waits: UNAVAILABLE that names the
  // first peer that has been stopped for too long, missing or not.
  Status JudgeStopped();

  const Peers& peers() const { return peers_; }
  int NameOf(int rank) const { return names_.ranks[rank]; }

  // Whether this rank has come to its end. Cheap: asked before every call.
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  // The first error; OK while there is none. What every later call returns.
  Status BrokenStatus() const;

  // Ends the waits of this rank, and those of the peers, with CANCELLED and `why`. Nothing where the rank is broken
  // already. From any thread; the wait here notices at its next look, within 50 ms at the latest.
  void Abort(const Status& why);
  // The same for an end that was seen elsewhere, with its own code.
  void End(const Status& error);
  // Takes leave of the peers in good order, unless the rank has come to another end. Peers that wait for a step of this
  // rank that it has announced are not disturbed. Peers that wait for more hear `how`.
  void Leave(std::string_view how);

 private:
  // Acquire: what `peer` wrote before it announced `step` may be read after this.
  bool Reached(int peer, uint32_t step) const {
    const uint32_t progress = segment_->block(peer).flag.progress.load(std::memory_order_acquire);
    return static_cast<int32_t>(progress - step) >= 0;
  }
  // The i-th rank behind this one, from 1 on.
  int PeerAt(int i) const { return rank_ + i < size_ ? rank_ + i : rank_ + i - size_; }
  // The slow way, for PeerAt(first) and those behind it: for each spins, then sleeps.
  Status WaitFrom(int first, uint32_t step);
  // Sleeps and judges by turns until the peer is there or the wait has ended badly.
  Status SleepUntil(int peer, uint32_t step, const Deadline& deadline);
  // True when the peer is there. Looks at least a few times, whatever the policy.
  bool Spin(int peer, uint32_t step) const;
  // Sleeps until the peer announces something, or `seconds` (less than 1) are over, or for no reason. True when it
  // slept until its time was over, rather than being woken.
  bool Sleep(int peer, uint32_t step, double seconds);
  // Why the wait cannot end well; OK while it can. `cause` becomes what the peers are told: the error itself, or, where
  // it was a peer that told us, what that peer said, so that the first cause travels and not a chain of reports.
  Status Judge(uint32_t step, bool look_for_deaths, const Deadline& deadline, std::string& cause);
  // What of a peer that has not done the step can be seen at first hand.
  Status JudgeMissing(int peer, bool look_for_deaths);
  // Whether it is stopped for too long: in words, or nothing.
  std::string StoppedTooLong(int peer);
  std::string Operation() const;
  // " on host a", or nothing in a job of one host.
  std::string OnHost() const;
  // The same behind a sentence: " (on host a)".
  std::string ThereToo() const;
  // Makes `error` the rank's end, unless it had one, tells the peers `cause`, and wakes everybody. Returns the rank's
  // end.
  Status Break(RankState state, const Status& error, const std::string& cause);
  void WakeAll();

  const std::shared_ptr<Segment> segment_;
  const int rank_;
  const int size_;
  const Names names_;
  const Peers peers_;
  // These belong to the thread that waits.
  WaitPolicy policy_;
  uint32_t announced_ = 0;
  double patience_s_ = 0;
  CallKind kind_ = CallKind::kBarrier;
  std::optional<CallKind> shown_;
  std::string_view name_;
  // What was seen of a peer's stop: when it was looked for last, how far the peer had come, and for how long it lasts.
  struct Stop {
    Deadline::Clock::time_point looked = {};
    uint32_t progress = 0;
    std::optional<double> seconds;  // nothing: it was not stopped
  };
  std::array<Stop, kMaxRanks> stops_;

  // Set (release) behind first_error_ and never reset: who reads true (acquire) finds the error there, under the mutex.
  std::atomic<bool> broken_{false};
  // Orders ends that come from several threads, so that one of them is the first. It guards first_error_ and the
  // writing of this rank's last words and state.
  mutable std::mutex mutex_;
  Status first_error_;  // guarded by mutex_
};

}  // namespace lockstep::shm
