#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/strings.h"
#include "core/comm/liveness/after_loss.h"
#include "core/comm/liveness/peer_end.h"
#include "core/comm/named/named_lane.h"
#include "core/comm/named/named_messages.h"
#include "core/telemetry/clock.h"

// The part of the lane for its driver, which is its thread or a caller: what it receives and what it does. The part for
// callers that do not drive is in named_lane.cc.

namespace lockstep {
namespace {

// How long the driver looks for an answer: the thread before it sleeps, a caller before it leaves that to the thread.
constexpr double kSpin_s = 100e-6;
// The most bytes that a caller exchanges itself: it is a thread of TensorFlow, which has other things to do.
constexpr int64_t kCallersBytes = int64_t{256} << 10;
// How often the thread reads what the peers sent while this rank waits for nothing.
constexpr double kWorkWait_s = 0.1;
// How often a thread whose peers take no data checks whether it has to leave.
constexpr double kPush_s = 0.1;
// How often a thread whose requests wait for others checks whether one of these is stopped.
constexpr double kLookForStops_s = 0.5;
// How long to wait for the message of a rank that has ended an exchange.
constexpr double kCauseWait_s = 1;

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

int64_t BytesOf(const NamedBatch& batch) {
  int64_t bytes = 0;
  for (const NamedBatch::Entry& entry : batch.entries) bytes += batch.error.ok() ? TensorBytes(entry) : 0;
  return bytes;
}

}  // namespace

bool NamedLane::HasWork() const { return leaves_ || !works_.empty() || !todo_.empty(); }

// A driver that has something to do checks by itself when that is done. A thread that sleeps is woken even if it has
// nothing to do yet, so that it looks for the answer.
bool NamedLane::ResumeDriver() {
  if (!driven_) return true;
  if (!idle_) return false;
  if (rank() == 0) Sequence();
  idle_ = todo_.empty();
  return std::exchange(sleeps_, false);
}

bool& NamedLane::ThisThreadDrives() {
  static thread_local bool drives = false;
  return drives;
}

void NamedLane::Drive(const std::vector<uint64_t>& tickets) {
  const double end = Now() + kSpin_s;
  ThisThreadDrives() = true;
  while (true) {
    {
      const MutexLock lock(mutex_);
      idle_ = false;
      if (rank() == 0) Sequence();
      int64_t bytes = 0;
      for (const NamedBatch& batch : todo_) bytes = std::min(bytes + BytesOf(batch), kMostTensorBytes);
      // Others may continue to make requests.
      const auto runs = [&](uint64_t ticket) LOCKSTEP_REQUIRES(mutex_) { return works_.count(ticket) > 0; };
      const bool waits = std::any_of(tickets.rbegin(), tickets.rend(), runs);
      if (!waits || leaves_ || bytes > kCallersBytes || (todo_.empty() && Now() >= end)) {
        driven_ = ThisThreadDrives() = false;
        if (!HasWork()) return;
        break;
      }
      idle_ = todo_.empty();
    }
    DoAll();
    for (const ControlLinks::Event& event : shared_links_.Await(0)) Handle(event);
  }
  links_.Wake();
}

// A Wake that a driving caller consumes is not lost: before it returns, that caller wakes the thread if there is
// something to do.
bool NamedLane::WaitForWork() {
  for (double end = Now() + kWorkWait_s, left = kWorkWait_s; driven_ || !HasWork(); left = end - Now()) {
    if (left <= 0 && !driven_) return false;
    if (left <= 0) end = Now() + (left = kWorkWait_s);
    mutex_.unlock();
    links_.WaitForWake(left);
    mutex_.lock();
  }
  return true;
}

// A thread that gave up its core needs some 20 us to come back; after a yield, if others want the core, it needs
// milliseconds. So the driver keeps the core for as long as an exchange takes, and no longer.
std::vector<ControlLinks::Event> NamedLane::SpinForEvents(std::optional<double>* seconds) {
  const double end = Now() + kSpin_s;
  while (true) {
    std::vector<ControlLinks::Event> events = shared_links_.Await(0);
    if (!events.empty()) return events;
    {
      const MutexLock lock(mutex_);
      if (!idle_ || leaves_) *seconds = 0;
      sleeps_ = *seconds != 0 && (works_.empty() || Now() >= end);
      if (sleeps_ || *seconds == 0) return {};
    }
  }
}

void NamedLane::Run() {
  bool drives = false;
  ThisThreadDrives() = true;
  while (true) {
    std::vector<std::string> warnings;
    std::optional<double> seconds = 0;
    bool spins = false, waits = false;
    {
      const MutexLock lock(mutex_);
      if (rank() == 0) Sequence();
      if (drives && !HasWork()) drives = driven_ = false;
      const bool is_wanted = drives || WaitForWork();
      drives = driven_ = true;
      if (leaves_) break;
      if (rank() == 0) Sequence();
      if (todo_.empty()) {
        seconds = rank() == 0 && broken_.ok() ? stalls_.Look(sequencer_, Now(), &warnings) : std::nullopt;
      }
      waits = todo_.empty() && !works_.empty() && broken_.ok();
      if (waits) seconds = std::min(seconds.value_or(kLookForStops_s), kLookForStops_s);
      if (!is_wanted) seconds = 0;
      // From here on, every thread that brings work wakes this one.
      spins = idle_ = seconds != 0;
    }
    for (const std::string& warning : warnings) {
      options_.warn(StrCat(options_.label, options_.label.empty() ? "" : ": ", warning));
    }
    DoAll();
    std::vector<ControlLinks::Event> events;
    if (spins) events = SpinForEvents(&seconds);
    if (events.empty()) events = shared_links_.Await(seconds);
    {
      const MutexLock lock(mutex_);
      idle_ = sleeps_ = false;
    }
    for (const ControlLinks::Event& event : events) Handle(event);
    if (const Status stopped = waits && events.empty() ? communicator_->StoppedPeer() : OkStatus(); !stopped.ok()) {
      Break(stopped);
    }
  }
  // Tells the others, too.
  Break(Cancelled("this rank has left its job"));
  // Does not wait long for a peer that takes no more data.
  constexpr double kFarewell_s = 1;
  for (const double end = Now() + kFarewell_s; !links_.flushed() && Now() < end;) shared_links_.Await(end - Now());
}

std::optional<Status> NamedLane::EndIn(const ControlLinks::Event& event) const {
  if (event.closed) {
    if (!event.why.ok()) return event.why;
    const Status why = communicator_->WhyLinkEnded(event.rank);
    return why.ok() ? Unavailable(StrCat("rank ", event.rank, " died or closed its connection")) : why;
  }
  switch (named_messages::KindOf(event.message)) {
    case named_messages::kLeft:
      return Unavailable(
          StrCat("rank ", event.rank, " left the job", Behind(": ", named_messages::ReadLeft(event.message))));
    case named_messages::kEnded: return named_messages::ReadEnd(event.message);
    default: return std::nullopt;
  }
}

void NamedLane::Handle(const ControlLinks::Event& event) {
  if (const std::optional<Status> why = EndIn(event)) {
    // First finishes what was sent before.
    DoAll();
    return Break(*why);
  }
  const char kind = named_messages::KindOf(event.message);
  if (kind == named_messages::kRequests && rank() == 0) {
    if (auto requests = named_messages::ReadRequests(event.message)) {
      const double now = Now();
      const MutexLock lock(mutex_);
      bool are_new = true;
      for (NamedRequest& request : *requests) {
        // Submit has checked this there already; it is checked again because every rank relies on it.
        if (request.refusal.ok()) request.refusal = CheckArguments(request, size());
        timeline_.Requested(request, event.rank);
        are_new = are_new && sequencer_.Add(event.rank, std::move(request), now).ok();
      }
      if (are_new) return;
    }
  }
  if (kind == named_messages::kCancelled && rank() == 0) {
    if (const auto given_up = named_messages::ReadCancellation(event.message)) {
      const MutexLock lock(mutex_);
      const Status why = Cancelled(StrCat("rank ", event.rank, ": ", given_up->why));
      return sequencer_.Cancel(event.rank, given_up->name, given_up->ticket, why);
    }
  }
  if (kind == named_messages::kBatches && rank() != 0) {
    if (auto batches = named_messages::ReadBatches(event.message, size())) {
      const MutexLock lock(mutex_);
      for (NamedBatch& batch : *batches) todo_.push_back(std::move(batch));
      return;
    }
  }
  Break(DataLoss(StrCat("rank ", event.rank, " sent a message to rank ", rank(), " that cannot be read")));
}

void NamedLane::Sequence() {
  if (!broken_.ok()) return;
  std::vector<NamedBatch> batches = sequencer_.Take();
  if (batches.empty()) return;
  timeline_.Cycle();
  for (const NamedBatch& batch : batches) timeline_.Ordered(batch);
  if (size() > 1) {
    for (const std::string& message : named_messages::OfBatches(batches)) {
      for (int peer = 1; peer < size(); ++peer) links_.Send(peer, message);
    }
  }
  for (NamedBatch& batch : batches) todo_.push_back(std::move(batch));
}

void NamedLane::DoAll() {
  std::deque<NamedBatch> batches;
  {
    const MutexLock lock(mutex_);
    batches.swap(todo_);
  }
  // The others have to know of a batch before rank 0 waits for them in it. Messages from other ranks can wait. They
  // have to wait when rank 0 is in an exchange with their sender and does not listen.
  while (rank() == 0 && !batches.empty() && !links_.Push(kPush_s)) {
    const MutexLock lock(mutex_);
    if (leaves_) return;
  }
  for (const NamedBatch& batch : batches) Do(batch);
}

void NamedLane::Do(const NamedBatch& batch) {
  std::vector<std::unique_ptr<NamedWork>> owned;
  std::vector<NamedWork*> works;
  bool knows_all = true;
  {
    const MutexLock lock(mutex_);
    if (!broken_.ok()) return;
    for (const NamedBatch::Entry& entry : batch.entries) {
      const uint64_t ticket = entry.tickets[rank()];
      const auto found = works_.find(ticket);
      std::unique_ptr<NamedWork> work;
      if (found != works_.end()) {
        work = std::move(found->second);
        works_.erase(found);
        if (work->request.kind == NamedKind::kJoin) {
          join_.reset();
        } else {
          names_.erase(work->request.name);
        }
      }
      // Joined ranks take part in sums.
      const bool brings_zeros = ticket == NamedBatch::kNoTicket && entry.request.kind == NamedKind::kAllReduce &&
                                entry.request.reduction != NamedReduction::kAdasum;
      const bool is_answer = work != nullptr && (!batch.error.ok() || IsAnswerTo(entry, work->request, rank()));
      knows_all = knows_all && (is_answer || brings_zeros);
      // Ranks that had joined made fewer calls: all ranks start counting again.
      if (entry.request.kind == NamedKind::kJoin && batch.error.ok()) numbers_.clear();
      works.push_back(work.get());
      owned.push_back(std::move(work));
    }
  }
  if (batch.entries.empty()) return;
  Status failure = batch.error;
  if (failure.ok() && !knows_all) {
    failure = DataLoss(StrCat(Describe(batch.entries.front().request), ": rank 0 began a request that rank ", rank(),
                              " did not make"));
  }
  if (!failure.ok()) {
    for (NamedWork* work : works) {
      if (work != nullptr) work->done(failure, {});
    }
    timeline_.End(batch);
    if (batch.error.ok()) Break(failure);
    return;
  }
  const NamedRequest& first = batch.entries.front().request;
  if (first.on_device) return DoOnDevice(batch, std::move(owned));
  timeline_.Begin(batch);
  const int64_t begin_ns = CountWait(batch, works);
  if (first.kind != NamedKind::kJoin) ReleaseHost();
  const Status status = exchange_.Run(batch, works, [this](const Status& error) { return CauseOf(error); });
  last_end_ns_ = SteadyNs();
  if (LaneCounters* const counters = communicator_->counters()) counters->AddExchange(last_end_ns_ - begin_ns);
  timeline_.End(batch);
  if (!status.ok()) Break(status);
}

// A request waits for the last rank's. While the lane is busy with another batch it would wait in any case, so only the
// time after that counts. If this rank came last, the wait is the way to rank 0 and back, and nobody's.
int64_t NamedLane::CountWait(const NamedBatch& batch, const std::vector<NamedWork*>& works) {
  const int64_t now_ns = SteadyNs();
  int64_t first_ns = now_ns;
  for (const NamedWork* const work : works) {
    if (work != nullptr) first_ns = std::min(first_ns, work->submitted_ns);
  }
  const int64_t begin_ns = std::max(first_ns, last_end_ns_);
  LaneCounters* const counters = communicator_->counters();
  if (counters == nullptr || begin_ns >= now_ns || batch.entries.front().request.kind == NamedKind::kJoin)
    return now_ns;
  const int last = batch.entries.back().last_rank;
  counters->AddWait(last == rank() ? std::nullopt : std::optional(last), begin_ns, now_ns - begin_ns);
  return begin_ns;
}

// A rank that fails sends the reason over its links before it aborts the communicator; the others get it from rank 0.
Status NamedLane::CauseOf(const Status& status) {
  if (status.code() != StatusCode::kCancelled) return status;
  {
    const MutexLock lock(mutex_);
    if (!broken_.ok()) return broken_;
  }
  for (const double end = Now() + kCauseWait_s; Now() < end;) {
    {
      const MutexLock lock(mutex_);
      if (leaves_) break;
    }
    for (const ControlLinks::Event& event : shared_links_.Await(kPush_s)) {
      if (const std::optional<Status> why = EndIn(event)) return *why;
    }
  }
  return status;
}

void NamedLane::Break(const Status& cause) {
  Status why = cause;
  std::unordered_map<uint64_t, std::unique_ptr<NamedWork>> works;
  bool leaves;
  std::string farewell;
  NamedDeviceExchange* device;
  {
    const MutexLock lock(mutex_);
    if (!broken_.ok()) return;
    leaves = leaves_;
    // A rank that leaves knows the reason better than the others do.
    if (leaves) why = Cancelled("this rank has left its job");
    broken_ = why;
    farewell = farewell_;
    works.swap(works_);
    names_.clear();
    join_.reset();
    todo_.clear();
    device = device_.get();
    device_changed_.NotifyAll();
  }
  const std::string message = leaves ? named_messages::OfLeft(farewell) : named_messages::OfEnd(why);
  for (int peer = 0; peer < size(); ++peer) links_.Send(peer, message);
  // Does nothing if the communicator was left already or is the cause. The thread that leaves may not have come so far.
  if (device != nullptr) {
    EndDevice(*device, leaves, farewell, why);
  } else if (leaves) {
    communicator_->Leave(farewell);
  } else {
    communicator_->Abort(why);
  }
  if (!leaves) peer_end::Note(why);
  if (!works.empty() && !leaves) AfterLoss::ProgramKnows();
  for (auto& [ticket, work] : works) work->done(why.WithPrefix(Describe(work->request) + ": "), {});
}

}  // namespace lockstep
