#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/shm/layout.h"
#include "core/comm/shm/peers.h"
#include "core/comm/shm/segment.h"

namespace lockstep::shm {

// How long to look for a peer's flag before the thread sleeps. Looking costs a core; being woken costs some 5 to 50 us.
struct WaitPolicy {
  double timeout_s = 300;  // how late a peer may be
  int spin_us = 100;       // where each rank has a core of its own
  int yields = 0;  // where it has not: times to offer the core to the others, who may be about to raise the flag
};

// The heartbeat of a rank: announces its progress, waits for that of the peers, and knows how a wait ends badly.
//
// Progress is a counter in shared memory. All ranks announce the same number of times in the same calls, so "rank p has
// done step n" is "p's counter is at least n" (modulo 2^32). A wait spins briefly, then sleeps on a futex for at most
// 50 ms at a time. Between sleeps it looks whether a rank that is still missing has died, left, aborted or failed, and
// whether its time is over. The first such error breaks the rank for good and is told to the peers through LastWords.
//
// Threads: Announce and WaitForAll by one thread at a time; Abort, Leave and BrokenStatus by any.
class Waiter {
 public:
  Waiter(std::shared_ptr<Segment> segment, int rank, Peers peers, const WaitPolicy& policy);

  // Once all ranks are attached and their number of cores is known.
  void set_policy(const WaitPolicy& policy) { policy_ = policy; }

  // What the following waits are for, for their errors. `name` has to outlive them.
  void SetOperation(CallKind kind, std::string_view name) {
    kind_ = kind;
    name_ = name;
  }

  // Says to the peers that the next step is done: all that was written before is visible to who sees it.
  void Announce();
  // How many steps were announced.
  uint32_t announced() const { return announced_; }

  // Waits until all peers have announced `step`.
  Status WaitForAll(uint32_t step) {
    for (int i = 1; i < size_; ++i) {
      const int peer = rank_ + i < size_ ? rank_ + i : rank_ + i - size_;
      if (Reached(peer, step)) [[likely]]
        continue;
      LOCKSTEP_RETURN_IF_ERROR(WaitFor(peer, step));
    }
    return OkStatus();
  }

  bool broken() const { return broken_.load(std::memory_order_acquire); }
  // The first error; OK while there is none.
  Status BrokenStatus() const;

  void Abort(const Status& why);
  // Takes leave of the peers in good order, unless the rank has come to another end.
  void Leave();

 private:
  bool Reached(int peer, uint32_t step) const {
    const uint32_t progress = segment_->block(peer).flag.progress.load(std::memory_order_acquire);
    return static_cast<int32_t>(progress - step) >= 0;
  }
  Status WaitFor(int peer, uint32_t step);
  bool Spin(int peer, uint32_t step) const;
  // True when it slept until its time was over, rather than being woken.
  bool Sleep(int peer, uint32_t step, double seconds);
  // Why the wait cannot end well; OK while it can. `cause` becomes what the peers are told: the error itself, or, where
  // it was a peer that told us, what that peer said, so that the first cause travels and not a chain of reports.
  Status Judge(uint32_t step, bool look_for_deaths, const Deadline& deadline, std::string& cause) const;
  // What of a peer that has not done the step can be seen at first hand.
  Status JudgeMissing(int peer, bool look_for_deaths) const;
  std::string Operation() const;
  // Makes `error` the rank's end, unless it had one, tells the peers `cause`, and wakes everybody. Returns the rank's
  // end.
  Status Break(RankState state, const Status& error, const std::string& cause);
  void WakeAll();

  const std::shared_ptr<Segment> segment_;
  const int rank_;
  const int size_;
  const Peers peers_;
  WaitPolicy policy_;
  uint32_t announced_ = 0;
  CallKind kind_ = CallKind::kBarrier;
  std::string_view name_;

  std::atomic<bool> broken_{false};
  mutable std::mutex mutex_;
  Status first_error_;  // guarded by mutex_
};

// "allreduce", ...
std::string_view CallKindName(CallKind kind);

}  // namespace lockstep::shm
