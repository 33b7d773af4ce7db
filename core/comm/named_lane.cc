#include "core/comm/named_lane.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/strings.h"

// Messages between ranks, each behind a byte that says which it is:
//
//   'r' requests: number 4, requests           a rank to rank 0
//   'c' cancelled: name, why                   a rank to rank 0
//   'b' batches:  number 4, batches            rank 0 to all
//   'l' left                                   a rank to rank 0, rank 0 to all
//   'e' ended: status                          rank 0 to all: the lane is broken

namespace lockstep {
namespace {

// How long a thread that awaits an answer looks for it before it sleeps.
constexpr double kLookOut_s = 100e-6;
// How often a thread whose peers take nothing looks whether it is to leave.
constexpr double kPush_s = 0.1;

constexpr char kRequests = 'r', kCancelled = 'c', kBatches = 'b', kLeft = 'l', kEnded = 'e';

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<int> SocketsOf(const Communicator& communicator) {
  std::vector<int> sockets(communicator.size(), -1);
  for (int rank = 0; rank < communicator.size(); ++rank) {
    // All talk to rank 0, and it to all.
    if (rank == communicator.rank() || (rank != 0 && communicator.rank() != 0)) continue;
    sockets[rank] = communicator.Link(rank);
  }
  return sockets;
}

}  // namespace

Result<std::unique_ptr<NamedLane>> NamedLane::Create(ContextOptions context, const NamedLaneOptions& options) {
  context.purpose = options.label.empty() ? "named lane" : StrCat("named lane of ", options.label);
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator, CreateCommunicator(context));
  return std::unique_ptr<NamedLane>(new NamedLane(std::move(communicator), context.shared_bytes_per_rank, options));
}

NamedLane::NamedLane(std::unique_ptr<Communicator> communicator, int64_t shared_bytes, const NamedLaneOptions& options)
    : communicator_(std::move(communicator)),
      shared_bytes_(shared_bytes),
      options_(options),
      links_(SocketsOf(*communicator_)),
      exchange_(*communicator_),
      stalls_({options.stall_warning_s, options.stall_timeout_s}),
      sequencer_({communicator_->size(), options.fusion_bytes}),
      thread_([this] { Run(); }) {}

NamedLane::~NamedLane() {
  Leave();
  thread_.join();
}

uint64_t NamedLane::Submit(NamedWork work) {
  std::vector<NamedWork> works;
  works.push_back(std::move(work));
  return Submit(std::move(works)).front();
}

std::vector<uint64_t> NamedLane::Submit(std::vector<NamedWork> works) {
  for (NamedWork& work : works) {
    NamedRequest& request = work.request;
    if (request.kind == NamedKind::kJoin) request.name = "join";
    if (request.refusal.ok()) request.refusal = CheckArguments(request, size());
    // What is bad is told with nothing else, as nobody would use it.
    if (!request.refusal.ok()) {
      request.shape.clear();
      request.splits.clear();
    }
  }
  std::vector<uint64_t> tickets;
  std::vector<NamedRequest> requests;
  std::vector<Status> refusals;
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    for (NamedWork& work : works) {
      tickets.push_back(next_ticket_++);
      work.request.ticket = tickets.back();
      requests.push_back(work.request);
      refusals.push_back(Register(&work));
      if (!refusals.back().ok()) requests.pop_back();
    }
    if (rank() == 0) {
      const double now = Now();
      for (NamedRequest& request : requests) {
        timeline_.Asked(request, 0);
        // This rank's own requests are never repeated: Register sees to it.
        (void)sequencer_.Add(0, std::move(request), now);
      }
    } else if (!requests.empty()) {
      ByteWriter writer;
      writer.Number(static_cast<uint8_t>(kRequests));
      writer.Number(static_cast<uint32_t>(requests.size()));
      for (const NamedRequest& request : requests) Write(request, writer);
      const Status sent = links_.Send(0, writer.Take());
      if (unsent_.ok()) unsent_ = sent;
    }
    wake = GoOn();
  }
  // So that the thread does not wake only to wait for the lock.
  if (wake) links_.Wake();
  for (size_t i = 0; i < works.size(); ++i) {
    if (!refusals[i].ok()) works[i].done(refusals[i], {});
  }
  return tickets;
}

Status NamedLane::Register(NamedWork* work) {
  if (!broken_.ok()) return broken_.WithPrefix(Describe(work->request) + ": ");
  const uint64_t ticket = work->request.ticket;
  if (!names_.try_emplace(work->request.name, ticket).second) {
    return InvalidArgument(StrCat(Describe(work->request), ": this rank waits for one of that name already"));
  }
  works_[ticket] = std::make_unique<NamedWork>(std::move(*work));
  return OkStatus();
}

uint64_t NamedLane::NextNumber(const std::string& text) {
  const std::lock_guard lock(mutex_);
  return numbers_[text]++;
}

void NamedLane::Cancel(uint64_t ticket, const std::string& why) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = works_.find(ticket);
    if (found == works_.end()) return;
    const std::string& name = found->second->request.name;
    if (rank() == 0) {
      sequencer_.Fail(name, Cancelled(StrCat("rank 0: ", why)));
    } else {
      ByteWriter writer;
      writer.Number(static_cast<uint8_t>(kCancelled));
      writer.String(name);
      writer.String(why);
      const Status sent = links_.Send(0, writer.Take());
      if (unsent_.ok()) unsent_ = sent;
    }
    wake = GoOn();
  }
  if (wake) links_.Wake();
}

// A thread that has something to do looks by itself when that is done. One that sleeps is woken even where it has
// nothing to do yet, so that it looks out for the answer.
bool NamedLane::GoOn() {
  if (!idle_) return false;
  if (rank() == 0) Sequence();
  idle_ = todo_.empty() && unsent_.ok();
  return !idle_ || std::exchange(sleeps_, false);
}

// A core that has been given up takes some 20 us to come back, and with a yield, where others want it, milliseconds. So
// the core is kept for as long as an exchange takes, and no longer.
std::vector<ControlLinks::Event> NamedLane::LookOut(double* seconds) {
  const double end = Now() + kLookOut_s;
  while (true) {
    std::vector<ControlLinks::Event> events = links_.Await(0);
    if (!events.empty()) return events;
    {
      const std::lock_guard lock(mutex_);
      if (!idle_ || leaves_) *seconds = 0;
      sleeps_ = *seconds != 0 && (works_.empty() || Now() >= end);
      if (sleeps_ || *seconds == 0) return {};
    }
  }
}

void NamedLane::Leave() {
  {
    const std::lock_guard lock(mutex_);
    leaves_ = true;
  }
  links_.Wake();
  communicator_->Leave();
}

int64_t NamedLane::pending() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(works_.size());
}

Status NamedLane::broken() const {
  const std::lock_guard lock(mutex_);
  return leaves_ ? OkStatus() : broken_;
}

Status NamedLane::StartTimeline(const std::string& path, bool mark_cycles) {
  return rank() == 0 ? timeline_.Start(path, mark_cycles) : OkStatus();
}

Status NamedLane::StopTimeline() { return timeline_.Stop(); }

void NamedLane::Run() {
  while (true) {
    std::vector<std::string> warnings;
    double seconds = 0;
    bool looks_out = false;
    Status unsent;
    {
      const std::lock_guard lock(mutex_);
      if (leaves_) break;
      if (rank() == 0) Sequence();
      unsent = std::exchange(unsent_, OkStatus());
      if (todo_.empty() && unsent.ok()) {
        seconds = rank() == 0 && broken_.ok() ? stalls_.Look(sequencer_, Now(), &warnings) : -1;
      }
      // Whoever brings work from here on wakes the thread.
      idle_ = seconds != 0;
      looks_out = idle_ && !works_.empty();
      sleeps_ = idle_ && !looks_out;
    }
    for (const std::string& warning : warnings) {
      options_.warn(StrCat(options_.label, options_.label.empty() ? "" : ": ", warning));
    }
    DoAll();
    if (!unsent.ok()) Break(unsent);
    std::vector<ControlLinks::Event> events;
    if (looks_out) events = LookOut(&seconds);
    if (events.empty()) events = links_.Await(seconds);
    {
      const std::lock_guard lock(mutex_);
      idle_ = sleeps_ = false;
    }
    for (const ControlLinks::Event& event : events) Handle(event);
  }
  for (int peer = 0; peer < size(); ++peer) (void)links_.Send(peer, std::string(1, kLeft));
  // A peer that takes nothing any more is not waited for long.
  constexpr double kFarewell_s = 1;
  for (const double end = Now() + kFarewell_s; !links_.flushed() && Now() < end;) links_.Await(end - Now());
  Break(Cancelled("this rank has left its job"));
}

void NamedLane::Handle(const ControlLinks::Event& event) {
  const auto end = [&](const Status& why) {
    // First what was said before.
    DoAll();
    Break(why);
  };
  if (event.closed) return end(Unavailable(StrCat("rank ", event.rank, " died or closed its connection")));
  ByteReader reader(event.message);
  const auto kind = static_cast<char>(reader.Number<uint8_t>());
  if (kind == kLeft && reader.Complete()) return end(Unavailable(StrCat("rank ", event.rank, " left the job")));
  if (kind == kEnded && rank() != 0) {
    const Status why = ReadStatus(reader);
    if (reader.Complete() && !why.ok()) return end(why);
  }
  if (kind == kRequests && rank() == 0) {
    HandleRequests(event.rank, reader);
    if (reader.Complete()) return;
  }
  if (kind == kCancelled && rank() == 0) {
    const std::string name = reader.String(), why = reader.String();
    const std::lock_guard lock(mutex_);
    if (reader.Complete()) return sequencer_.Fail(name, Cancelled(StrCat("rank ", event.rank, ": ", why)));
  }
  if (kind == kBatches && rank() != 0) {
    const auto count = reader.Number<uint32_t>();
    const std::lock_guard lock(mutex_);
    for (uint32_t i = 0; i < count && reader.good(); ++i) {
      NamedBatch batch = ReadNamedBatch(reader, size());
      if (reader.good()) todo_.push_back(std::move(batch));
    }
    if (reader.Complete()) return;
  }
  Break(DataLoss(StrCat("rank ", event.rank, " sent a message that is none")));
}

void NamedLane::HandleRequests(int rank, ByteReader& reader) {
  const auto count = reader.Number<uint32_t>();
  const double now = Now();
  const std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < count && reader.good(); ++i) {
    NamedRequest request = ReadNamedRequest(reader);
    if (!reader.good()) break;
    // As Submit has done there already, and every rank relies on it.
    if (request.refusal.ok()) request.refusal = CheckArguments(request, size());
    timeline_.Asked(request, rank);
    if (!sequencer_.Add(rank, std::move(request), now).ok()) reader.Spoil();
  }
}

void NamedLane::Sequence() {
  if (!broken_.ok()) return;
  std::vector<NamedBatch> batches = sequencer_.Take();
  if (batches.empty()) return;
  timeline_.Cycle();
  for (const NamedBatch& batch : batches) {
    for (const NamedBatch::Entry& entry : batch.entries) timeline_.Ordered(entry.request);
  }
  ByteWriter writer;
  writer.Number(static_cast<uint8_t>(kBatches));
  writer.Number(static_cast<uint32_t>(batches.size()));
  for (const NamedBatch& batch : batches) Write(batch, writer);
  const std::string message = writer.Take();
  for (int peer = 1; peer < size(); ++peer) {
    const Status sent = links_.Send(peer, message);
    if (unsent_.ok()) unsent_ = sent;
  }
  for (NamedBatch& batch : batches) todo_.push_back(std::move(batch));
}

void NamedLane::DoAll() {
  std::deque<NamedBatch> batches;
  {
    const std::lock_guard lock(mutex_);
    batches.swap(todo_);
  }
  // The others have to know of a batch before this thread waits for them in it.
  while (!batches.empty() && !links_.Push(kPush_s)) {
    const std::lock_guard lock(mutex_);
    if (leaves_) return;
  }
  for (const NamedBatch& batch : batches) Do(batch);
}

void NamedLane::Do(const NamedBatch& batch) {
  std::vector<std::unique_ptr<NamedWork>> owned;
  std::vector<NamedWork*> works;
  {
    const std::lock_guard lock(mutex_);
    if (!broken_.ok()) return;
    for (const NamedBatch::Entry& entry : batch.entries) {
      const auto found = works_.find(entry.tickets[rank()]);
      std::unique_ptr<NamedWork> work;
      if (found != works_.end()) {
        work = std::move(found->second);
        works_.erase(found);
        names_.erase(work->request.name);
      }
      works.push_back(work.get());
      owned.push_back(std::move(work));
    }
  }
  if (batch.entries.empty()) return;
  if (!batch.error.ok()) {
    for (NamedWork* work : works) {
      if (work != nullptr) work->done(batch.error, {});
    }
    timeline_.End(batch);
    return;
  }
  const NamedBatch::Entry& entry = batch.entries.front();
  const bool takes_zeros = entry.request.kind == NamedKind::kAllReduce;
  bool asked = takes_zeros || std::find(works.begin(), works.end(), nullptr) == works.end();
  for (size_t i = 0; i < works.size() && asked; ++i) {
    asked = works[i] == nullptr || IsAnswerTo(batch.entries[i], works[i]->request, rank());
  }
  if (!asked) {
    const Status why = DataLoss(StrCat(Describe(entry.request), ": rank 0 says to do what this rank did not ask for"));
    for (NamedWork* work : works) {
      if (work != nullptr) work->done(why, {});
    }
    return Break(why);
  }
  timeline_.Begin(batch);
  const Status status = exchange_.Run(batch, works);
  timeline_.End(batch);
  if (!status.ok()) Break(status);
}

void NamedLane::Break(const Status& why) {
  std::unordered_map<uint64_t, std::unique_ptr<NamedWork>> works;
  {
    const std::lock_guard lock(mutex_);
    if (!broken_.ok()) return;
    broken_ = why;
    works.swap(works_);
    names_.clear();
    todo_.clear();
  }
  // Nothing where the rank has left, or the communicator is what broke.
  communicator_->Abort(why);
  if (rank() != 0) (void)links_.Send(0, std::string(1, kLeft));
  if (rank() == 0) {
    ByteWriter writer;
    writer.Number(static_cast<uint8_t>(kEnded));
    WriteStatus(why, writer);
    const std::string message = writer.Take();
    for (int peer = 1; peer < size(); ++peer) (void)links_.Send(peer, message);
  }
  for (auto& [ticket, work] : works) work->done(why.WithPrefix(Describe(work->request) + ": "), {});
}

}  // namespace lockstep
