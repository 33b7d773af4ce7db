#include "core/comm/shm/waiter.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/liveness/peer_end.h"
#include "core/telemetry/clock.h"

// A wait has three stages, from the cheapest to the most patient: a check of the flag (WaitForAll, inline), a spin, and
// sleeps on a futex with a judgement between them.
//
// No wake-up is lost. A sleeper registers, then reads the progress for the last time; an announcer raises the progress,
// then reads the number of sleepers. All four accesses are sequentially consistent, so at least one of the two sees the
// other. The progress is the futex's word: if it changes between the last read and the system call, the kernel notices
// the difference and returns at once. With only acquire and release, a store could be delayed after the following load
// on both sides, and the sleeper would sleep until its timeout.
//
// State and EndReason have no such protocol: a rank that breaks wakes all peers, but a peer may go to sleep just after
// that. This costs it at most one sleep.

namespace lockstep::shm {
namespace {

// The longest sleep without a check of the peers. It bounds how late a death, an abort or a farewell is seen. Each
// check is a system call for each missing rank, so 20 checks per second cost almost nothing.
constexpr double kSleep_s = 0.05;
// The interval of checks for stopped peers, which cost more. At most kGap_s of the time between two checks counts: in a
// longer gap this process was stopped itself, as Ctrl-Z stops a whole job, or the machine slept.
constexpr double kLookForStops_s = 0.25;
constexpr double kGap_s = 1;

// Makes the futex system call on a word that several processes map. So it does not use FUTEX_PRIVATE_FLAG, which would
// find only sleepers of this process.
long Futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout = nullptr) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

Waiter::Waiter(std::shared_ptr<Segment> segment, int rank, Names names, Peers peers, const WaitPolicy& policy)
    : segment_(std::move(segment)),
      rank_(rank),
      size_(segment_->layout().size),
      names_(std::move(names)),
      peers_(std::move(peers)),
      policy_(policy) {}

// Only this thread writes the counter, so a store replaces an increment; announced_ is the local copy.
void Waiter::Announce() {
  FlagLine& flag = segment_->block(rank_).flag;
  // Sequentially consistent, like a sleeper's registration: either we see the sleeper or it sees our progress.
  flag.progress.store(++announced_, std::memory_order_seq_cst);
  // Wakes all sleepers, because they may wait for different steps; they check again.
  if (flag.sleepers.load(std::memory_order_seq_cst) != 0) [[unlikely]]
    Futex(flag.progress, FUTEX_WAKE, INT_MAX);
}

// There is one deadline for all peers; otherwise a wait could last R - 1 times as long as promised. It begins with the
// first sleep: most waits end before, and need not read the clock.
//
// A peer that arrived while this rank waited for another one is not waited for: its wait is not counted.
Status Waiter::WaitFrom(int first, uint32_t step, LaneCounters* counters) {
  std::optional<Deadline> deadline;
  for (int i = first; i < size_; ++i) {
    const int peer = PeerAt(i);
    if (Reached(peer, step)) continue;
    const Spun spun = Spin(peer, step);
    if (spun.briefly) continue;
    Status status;
    if (!spun.reached) {
      if (!deadline) deadline = Deadline::After(policy_.timeout_s + patience_s_);
      status = SleepUntil(peer, step, *deadline);
    }
    if (counters != nullptr) {
      const auto late = peers_are_late_ ? std::optional(NameOf(peer)) : std::nullopt;
      counters->AddWait(late, spun.begin_ns, SteadyNs() - spun.begin_ns);
    }
    LOCKSTEP_RETURN_IF_ERROR(std::move(status));
  }
  return OkStatus();
}

// The first judgement comes before the first sleep, so that a known end does not cost 50 ms. It does not check for
// deaths: that takes a system call and pays only when nothing has happened during a whole sleep. So a wait that ends
// well makes only the system calls of its sleep.
Status Waiter::SleepUntil(int peer, uint32_t step, const Deadline& deadline) {
  bool look_for_deaths = false;
  while (!Reached(peer, step)) {
    std::string cause;
    const Status judgement = Judge(step, look_for_deaths, deadline, cause);
    if (!judgement.ok()) {
      if (!broken()) peer_end::Note(judgement);  // an earlier error was noted then, or is this rank's own
      return Break(RankState::kBroken, judgement, cause.empty() ? judgement.message() : cause);
    }
    look_for_deaths = Sleep(peer, step, std::clamp(deadline.Left(), 0.001, kSleep_s));
  }
  return OkStatus();
}

Waiter::Spun Waiter::Spin(int peer, uint32_t step) const {
  // The clock is read once in this many checks: it costs as much as a check.
  constexpr int kLooks = 64;
  const int64_t begin_ns = SteadyNs();
  const int64_t end_ns = begin_ns + int64_t{policy_.spin_us} * 1000;
  bool briefly = true;
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (Reached(peer, step)) return {true, briefly, begin_ns};
      __builtin_ia32_pause();
    }
    briefly = false;
  } while (!broken() && SteadyNs() < end_ns);
  for (int i = 0; i < policy_.yields; ++i) {
    if (Reached(peer, step)) return {true, false, begin_ns};
    sched_yield();
  }
  return {false, false, begin_ns};
}

// Registered in `sleepers` from before the last check until after the wake-up, even if there turns out to be nothing to
// wait for.
bool Waiter::Sleep(int peer, uint32_t step, double seconds) {
  FlagLine& flag = segment_->block(peer).flag;
  flag.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t progress = flag.progress.load(std::memory_order_seq_cst);
  bool timed_out = false;
  if (static_cast<int32_t>(progress - step) < 0) {
    // Nanoseconds of a second; `seconds` is less than one. Relative to now, as FUTEX_WAIT requires.
    const timespec timeout = {0, static_cast<long>(seconds * 1e9)};
    timed_out = Futex(flag.progress, FUTEX_WAIT, progress, &timeout) != 0 && errno == ETIMEDOUT;
  }
  flag.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return timed_out;
}

// Each judgement checks everything again; the order of the checks decides which of several reasons is reported.
Status Waiter::Judge(uint32_t step, bool look_for_deaths, const Deadline& deadline, std::string& cause) {
  if (broken()) return BrokenStatus();
  std::vector<int> missing;
  for (int peer = 0; peer < size_; ++peer) {
    // Only a peer that has not done the step can break it: a peer that has done its part may leave or die.
    if (peer != rank_ && !Reached(peer, step)) missing.push_back(peer);
  }
  // The rank's own observations have priority over reports of others.
  for (int peer : missing) {
    Status status = JudgeMissing(peer, look_for_deaths);
    // (A rank may have done the step and died between the two checks: then its death is not a reason.)
    if (!status.ok() && !Reached(peer, step)) return status;
  }
  // A rank that aborted or failed ends the job, whether or not it has done this step.
  for (int peer = 0; peer < size_; ++peer) {
    RankBlock& block = segment_->block(peer);
    const RankState state = block.flag.state.load(std::memory_order_acquire);
    if (peer == rank_ || (state != RankState::kAborted && state != RankState::kBroken)) continue;
    const std::string words = block.end_reason.text;
    cause = state == RankState::kAborted ? StrCat("rank ", NameOf(peer), " aborted the job: ", words) : words;
    return Status(block.end_reason.code,
                  StrCat("rank ", NameOf(rank_), ": ", Operation(), " ended, because ",
                         state == RankState::kAborted ? cause : StrCat("rank ", NameOf(peer), " gave up: ", words)));
  }
  if (deadline.Passed() && !missing.empty()) {
    std::vector<int> named;
    for (int peer : missing) named.push_back(NameOf(peer));
    return DeadlineExceeded(StrCat("rank ", NameOf(rank_), ": nothing from ", missing.size() == 1 ? "rank " : "ranks ",
                                   JoinWithAnd(named), " for ", policy_.timeout_s + patience_s_, " s in ", Operation(),
                                   HostSuffix()));
  }
  return OkStatus();
}

std::string Waiter::OnHost() const { return names_.host.empty() ? "" : StrCat(" on host ", names_.host); }

std::string Waiter::HostSuffix() const { return names_.host.empty() ? "" : StrCat(" (on host ", names_.host, ")"); }

// The peer's own state has priority over the kernel's data about its process.
Status Waiter::JudgeMissing(int peer, bool look_for_deaths) {
  const RankState state = segment_->block(peer).flag.state.load(std::memory_order_acquire);
  if (state == RankState::kLeft) {
    return Unavailable(StrCat("rank ", NameOf(rank_), ": rank ", NameOf(peer), " left the job while rank ",
                              NameOf(rank_), " waited for it in ", Operation(), HostSuffix(),
                              Behind(": ", segment_->block(peer).end_reason.text)));
  }
  // The error text of a failed rank tells more than its end.
  if (state != RankState::kRunning || !look_for_deaths) return OkStatus();
  const Peers::Fate fate = peers_.Look(peer);
  // It may have left between the two checks: the next judgement sees that.
  if (segment_->block(peer).flag.state.load(std::memory_order_acquire) != RankState::kRunning) return OkStatus();
  switch (fate) {
    case Peers::Fate::kAlive: {
      const std::string stopped = StoppedTooLong(peer);
      if (stopped.empty()) return OkStatus();
      return Unavailable(StrCat("rank ", NameOf(rank_), ": ", stopped, " while rank ", NameOf(rank_),
                                " waited for it in ", Operation()));
    }
    case Peers::Fate::kDied:
      return Unavailable(StrCat("rank ", NameOf(rank_), ": rank ", NameOf(peer), " (process ", peers_.pid(peer),
                                OnHost(), ") died while rank ", NameOf(rank_), " waited for it in ", Operation()));
    case Peers::Fate::kDisconnected:
      return Unavailable(StrCat("rank ", NameOf(rank_), ": rank ", NameOf(peer), " (process ", peers_.pid(peer),
                                OnHost(), ") closed its connection while rank ", NameOf(rank_), " waited for it in ",
                                Operation()));
  }
  return OkStatus();
}

Status Waiter::JudgeStopped() {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || segment_->block(peer).flag.state.load(std::memory_order_acquire) != RankState::kRunning)
      continue;
    if (std::string stopped = StoppedTooLong(peer); !stopped.empty()) return Unavailable(std::move(stopped));
  }
  return OkStatus();
}

std::string Waiter::StoppedTooLong(int peer) {
  if (!policy_.stopped_timeout_s) return "";
  const MutexLock lock(stops_mutex_);
  Stop& stop = stops_[peer];
  const auto now = Deadline::Clock::now();
  const double since_look_s = std::chrono::duration<double>(now - stop.looked).count();
  if (since_look_s >= kLookForStops_s) {
    stop.looked = now;
    const uint32_t before =
        std::exchange(stop.progress, segment_->block(peer).flag.progress.load(std::memory_order_acquire));
    if (!peers_.IsStopped(peer)) {
      stop.seconds.reset();
    } else {
      // A peer that has made progress ran meanwhile: this is a new stop.
      const bool lasts = stop.seconds && stop.progress == before;
      stop.seconds = lasts ? *stop.seconds + std::min(since_look_s, kGap_s) : 0;
    }
  }
  if (!stop.seconds || *stop.seconds < *policy_.stopped_timeout_s) return "";
  return StrCat("rank ", NameOf(peer), " (process ", peers_.pid(peer), OnHost(), ") has been stopped for ",
                *policy_.stopped_timeout_s, " s (by SIGSTOP or Ctrl-Z; the limit is stopped_timeout_s)");
}

std::string Waiter::Operation() const { return StrCat(CallKindName(kind_), " '", name_, "'"); }

Status Waiter::BrokenStatus() const {
  const MutexLock lock(mutex_);
  return first_error_;
}

// The order of the writes is the protocol. EndReason comes first, then the state (release) that lets peers read it;
// first_error_ comes first, then broken_ (release) that lets other threads here read it. A second end, from any thread,
// finds the first.
Status Waiter::Break(RankState state, const Status& error, const std::string& cause) {
  const MutexLock lock(mutex_);
  if (!first_error_.ok()) return first_error_;
  first_error_ = error;
  RankBlock& block = segment_->block(rank_);
  block.end_reason.code = error.code();
  std::snprintf(block.end_reason.text, sizeof(block.end_reason.text), "%s", cause.c_str());
  block.flag.state.store(state, std::memory_order_release);
  broken_.store(true, std::memory_order_release);
  WakeAll();
  return error;
}

void Waiter::Abort(const Status& why) {
  // The code of an aborted call is always CANCELLED. If the reason has another code, its text contains that code.
  const std::string reason = why.code() == StatusCode::kCancelled ? why.message() : why.ToString();
  (void)Break(RankState::kAborted, Cancelled(reason), reason);  // the error is for the calls to return
}

void Waiter::End(const Status& error) {
  (void)Break(RankState::kBroken, error, error.message());  // the error is for the calls to return
}

// Later calls return CANCELLED with this reason; peers read `how`.
void Waiter::Leave(std::string_view how) {
  const Status reason = Cancelled(StrCat("rank ", NameOf(rank_), " has left the job"));
  (void)Break(RankState::kLeft, reason, std::string(how));  // as above
}

void Waiter::WakeAll() {
  // A sleeper may wait for any of the ranks. One that misses this wakes within kSleep_s.
  for (int peer = 0; peer < size_; ++peer) Futex(segment_->block(peer).flag.progress, FUTEX_WAKE, INT_MAX);
}

}  // namespace lockstep::shm
