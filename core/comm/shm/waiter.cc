#include "core/comm/shm/waiter.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <vector>

#include "core/base/strings.h"

namespace lockstep::shm {
namespace {

// The longest sleep without a look at the peers: a bound of how late a death is seen.
constexpr double kSleep_s = 0.05;

// The futex system call on a word that several processes map.
long Futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout = nullptr) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

std::string_view CallKindName(CallKind kind) {
  switch (kind) {
    case CallKind::kAllReduce: return "allreduce";
    case CallKind::kReduceScatter: return "reducescatter";
    case CallKind::kBroadcast: return "broadcast";
    case CallKind::kAllGatherV: return "allgather";
    case CallKind::kAllToAllV: return "alltoall";
    case CallKind::kBarrier: return "barrier";
    case CallKind::kDecline: return "decline";
  }
  return "unknown";
}

Waiter::Waiter(std::shared_ptr<Segment> segment, int rank, Peers peers, const WaitPolicy& policy)
    : segment_(std::move(segment)),
      rank_(rank),
      size_(segment_->layout().size),
      peers_(std::move(peers)),
      policy_(policy) {}

void Waiter::Announce() {
  FlagLine& flag = segment_->block(rank_).flag;
  // Sequentially consistent, as is a sleeper's registration: either we see the sleeper or it sees our progress.
  flag.progress.store(++announced_, std::memory_order_seq_cst);
  if (flag.sleepers.load(std::memory_order_seq_cst) != 0) [[unlikely]]
    Futex(flag.progress, FUTEX_WAKE, INT_MAX);
}

Status Waiter::WaitFor(int peer, uint32_t step) {
  if (Spin(peer, step)) return OkStatus();
  const Deadline deadline = Deadline::After(policy_.timeout_s);
  bool look_for_deaths = false;
  while (!Reached(peer, step)) {
    std::string cause;
    const Status judgement = Judge(step, look_for_deaths, deadline, cause);
    if (!judgement.ok()) return Break(RankState::kBroken, judgement, cause.empty() ? judgement.message() : cause);
    look_for_deaths = Sleep(peer, step, std::clamp(deadline.Left(), 0.001, kSleep_s));
  }
  return OkStatus();
}

bool Waiter::Spin(int peer, uint32_t step) const {
  // The clock is asked once in this many looks: it costs as much as a look.
  constexpr int kLooks = 64;
  const auto end = Deadline::Clock::now() + std::chrono::microseconds(policy_.spin_us);
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (Reached(peer, step)) return true;
      __builtin_ia32_pause();
    }
  } while (!broken() && Deadline::Clock::now() < end);
  for (int i = 0; i < policy_.yields; ++i) {
    if (Reached(peer, step)) return true;
    sched_yield();
  }
  return false;
}

bool Waiter::Sleep(int peer, uint32_t step, double seconds) {
  FlagLine& flag = segment_->block(peer).flag;
  flag.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t progress = flag.progress.load(std::memory_order_seq_cst);
  bool timed_out = false;
  if (static_cast<int32_t>(progress - step) < 0) {
    const timespec timeout = {0, static_cast<long>(seconds * 1e9)};
    timed_out = Futex(flag.progress, FUTEX_WAIT, progress, &timeout) != 0 && errno == ETIMEDOUT;
  }
  flag.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return timed_out;
}

Status Waiter::Judge(uint32_t step, bool look_for_deaths, const Deadline& deadline, std::string& cause) const {
  if (broken()) return BrokenStatus();
  std::vector<int> missing;
  for (int peer = 0; peer < size_; ++peer) {
    // Only who has not done the step can spoil it: a peer that has done its part may leave, or die, in peace.
    if (peer != rank_ && !Reached(peer, step)) missing.push_back(peer);
  }
  // What is seen with own eyes comes before what others say.
  for (int peer : missing) {
    Status status = JudgeMissing(peer, look_for_deaths);
    if (!status.ok() && !Reached(peer, step)) return status;
  }
  // Who aborted or failed ends the job, whether or not it has done this step.
  for (int peer = 0; peer < size_; ++peer) {
    RankBlock& block = segment_->block(peer);
    const RankState state = block.flag.state.load(std::memory_order_acquire);
    if (peer == rank_ || (state != RankState::kAborted && state != RankState::kBroken)) continue;
    const std::string words = block.last_words.text;
    cause = state == RankState::kAborted ? StrCat("rank ", peer, " aborted the job: ", words) : words;
    return Status(block.last_words.code,
                  StrCat("rank ", rank_, ": ", Operation(), " ended, because ",
                         state == RankState::kAborted ? cause : StrCat("rank ", peer, " gave up: ", words)));
  }
  if (deadline.Passed() && !missing.empty()) {
    return DeadlineExceeded(StrCat("rank ", rank_, ": nothing from ", missing.size() == 1 ? "rank " : "ranks ",
                                   JoinWithAnd(missing), " for ", policy_.timeout_s, " s in ", Operation()));
  }
  return OkStatus();
}

Status Waiter::JudgeMissing(int peer, bool look_for_deaths) const {
  const RankState state = segment_->block(peer).flag.state.load(std::memory_order_acquire);
  if (state == RankState::kLeft) {
    return Unavailable(StrCat("rank ", rank_, ": rank ", peer, " left the job, and is waited for in ", Operation()));
  }
  // A rank that failed tells more by its last words than by its end.
  if (state != RankState::kRunning || !look_for_deaths) return OkStatus();
  const Peers::Fate fate = peers_.Look(peer);
  // It may have said goodbye between the two looks: the next judgement hears that.
  if (segment_->block(peer).flag.state.load(std::memory_order_acquire) != RankState::kRunning) return OkStatus();
  switch (fate) {
    case Peers::Fate::kAlive: return OkStatus();
    case Peers::Fate::kDied:
      return Unavailable(StrCat("rank ", rank_, ": rank ", peer, " (process ", peers_.pid(peer),
                                ") died, and is waited for in ", Operation()));
    case Peers::Fate::kDisconnected:
      return Unavailable(
          StrCat("rank ", rank_, ": rank ", peer, " closed its connection, and is waited for in ", Operation()));
  }
  return OkStatus();
}

std::string Waiter::Operation() const { return StrCat(CallKindName(kind_), " '", name_, "'"); }

Status Waiter::BrokenStatus() const {
  std::lock_guard lock(mutex_);
  return first_error_;
}

Status Waiter::Break(RankState state, const Status& error, const std::string& cause) {
  std::lock_guard lock(mutex_);
  if (!first_error_.ok()) return first_error_;
  first_error_ = error;
  RankBlock& block = segment_->block(rank_);
  block.last_words.code = error.code();
  std::snprintf(block.last_words.text, sizeof(block.last_words.text), "%s", cause.c_str());
  block.flag.state.store(state, std::memory_order_release);
  broken_.store(true, std::memory_order_release);
  WakeAll();
  return error;
}

void Waiter::Abort(const Status& why) {
  // The code of an aborted call is CANCELLED whatever the reason was; a reason that is not a mere cancellation keeps
  // its code in the text.
  const std::string reason = why.code() == StatusCode::kCancelled ? why.message() : why.ToString();
  (void)Break(RankState::kAborted, Cancelled(reason), reason);  // the error is for the calls to return
}

void Waiter::Leave() {
  const std::string reason = StrCat("rank ", rank_, " has left the job");
  (void)Break(RankState::kLeft, Cancelled(reason), reason);  // as above
}

void Waiter::WakeAll() {
  // A sleeper waits for any of the ranks. Who misses this wakes within kSleep_s.
  for (int peer = 0; peer < size_; ++peer) Futex(segment_->block(peer).flag.progress, FUTEX_WAKE, INT_MAX);
}

}  // namespace lockstep::shm
