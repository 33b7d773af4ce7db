#include "core/comm/named/named_lane.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/job/create_communicator.h"
#include "core/comm/liveness/after_loss.h"
#include "core/comm/named/named_messages.h"
#include "core/telemetry/clock.h"

namespace lockstep {
namespace {

constexpr char kJoinName[] = "join";

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// All ranks talk to rank 0, and rank 0 to all: the descriptor or key `of` each such rank, no value for the others.
template <typename Of>
auto OfPeers(const Communicator& communicator, const Of& of) {
  std::vector<decltype(of(0))> values(communicator.size());
  for (int rank = 0; rank < communicator.size(); ++rank) {
    if (rank != communicator.rank() && (rank == 0 || communicator.rank() == 0)) values[rank] = of(rank);
  }
  return values;
}

Status ForkStatus(const NamedRequest& request) {
  return FailedPrecondition(StrCat(Describe(request), ": this process is a fork of the one that joined the job, ",
                                   "and a fork cannot take part in its collectives"));
}

}  // namespace

Result<std::unique_ptr<NamedLane>> NamedLane::Create(ContextOptions context, const NamedLaneOptions& options) {
  context.purpose = options.label.empty() ? "named lane" : StrCat("named lane of ", options.label);
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator, CreateCommunicator(context));
  std::unique_ptr<NamedLane> lane(new NamedLane(std::move(communicator), context.shared_bytes_per_rank, options));
  LOCKSTEP_RETURN_IF_ERROR(lane->links_.Usable());
  try {
    lane->thread_ = std::thread([lane = lane.get()] { lane->Run(); });
  } catch (const std::system_error& error) {
    return ResourceExhausted(StrCat("no thread for a named lane: ", error.what()));
  }
  return lane;
}

NamedLane::NamedLane(std::unique_ptr<Communicator> communicator, int64_t shared_bytes, const NamedLaneOptions& options)
    : communicator_(std::move(communicator)),
      shared_bytes_(shared_bytes),
      options_(options),
      links_(OfPeers(*communicator_, [this](int rank) { return communicator_->Link(rank); }),
             OfPeers(*communicator_, [this](int rank) { return communicator_->DeathFd(rank); }),
             OfPeers(*communicator_, [this](int rank) { return communicator_->LinkKey(rank); }), communicator_->rank()),
      exchange_(*communicator_),
      stalls_({options.stall_warning_s, options.stall_timeout_s}),
      sequencer_({communicator_->size(), options.fusion_bytes}) {
  if (options_.devices != nullptr) shared_links_.Admit();
}

NamedLane::~NamedLane() {
  Leave();
  if (thread_.joinable()) thread_.join();
  // It ends before the communicator, which it uses. Its requests end meanwhile.
  std::unique_ptr<NamedDeviceExchange> device;
  {
    const MutexLock lock(mutex_);
    device = std::move(device_);
  }
  device.reset();
}

uint64_t NamedLane::Submit(NamedWork work) {
  std::vector<NamedWork> works;
  works.push_back(std::move(work));
  return Submit(std::move(works)).front();
}

std::vector<uint64_t> NamedLane::Submit(std::vector<NamedWork> works) {
  if (fork_.InFork()) {
    for (NamedWork& work : works) work.done(ForkStatus(work.request), {});
    return std::vector<uint64_t>(works.size(), NamedBatch::kNoTicket);
  }
  for (NamedWork& work : works) {
    NamedRequest& request = work.request;
    if (request.kind == NamedKind::kJoin) request.name = kJoinName;
    if (!HasData(request.kind)) request.on_device = false;
    if (request.refusal.ok()) request.refusal = CheckArguments(request, size());
    if (request.refusal.ok() && request.on_device && work.stream == nullptr) {
      request.refusal = InvalidArgument(StrCat(Describe(request), ": a tensor on a GPU, and no stream of its caller"));
    }
    // A bad request is sent without its shape and splits, because no rank would use them.
    if (!request.refusal.ok()) {
      request.shape.clear();
      request.splits.clear();
    }
  }
  const int64_t submitted_ns = SteadyNs();
  std::vector<uint64_t> tickets;
  std::vector<Status> refusals;
  bool wake = false, drives = false;
  {
    const MutexLock lock(mutex_);
    // If this rank already waits for others, a peer is late.
    drives = !driven_ && works_.empty() && !ThisThreadDrives();
    refusals = Refuse(works);
    std::vector<NamedRequest> requests;
    requests.reserve(works.size());
    for (size_t i = 0; i < works.size(); ++i) {
      works[i].request.ticket = tickets.emplace_back(next_ticket_++);
      works[i].submitted_ns = submitted_ns;
      if (!refusals[i].ok()) continue;
      requests.push_back(works[i].request);
      // To where its answer will find it.
      const uint64_t ticket = tickets.back();
      if (works[i].request.kind == NamedKind::kJoin) {
        join_ = ticket;
      } else {
        names_.emplace(works[i].request.name, ticket);
      }
      works_.emplace(ticket, std::make_unique<NamedWork>(std::move(works[i])));
    }
    Send(std::move(requests));
    if (drives) driven_ = true;
    wake = ResumeDriver();
  }
  // Wakes it here, so that the thread does not wake only to wait for the lock.
  if (wake) links_.Wake();
  if (drives) Drive(tickets);
  for (size_t i = 0; i < works.size(); ++i) {
    if (!refusals[i].ok()) works[i].done(refusals[i], {});
  }
  return tickets;
}

std::vector<Status> NamedLane::Refuse(const std::vector<NamedWork>& works) const {
  std::vector<Status> refusals(works.size());
  std::unordered_map<std::string, Status> groups;  // the refused ones
  std::unordered_set<std::string> names;           // those of this call, if it has several
  bool joins = join_.has_value();
  for (size_t i = 0; i < works.size(); ++i) {
    const NamedRequest& request = works[i].request;
    const bool is_join = request.kind == NamedKind::kJoin;
    const auto refuse = [&](const auto&... text) {
      refusals[i] = InvalidArgument(StrCat(Describe(request), ": ", text...));
      if (!request.group.empty()) groups.try_emplace(request.group, refusals[i]);
    };
    if (!broken_.ok()) {
      refusals[i] = broken_.WithPrefix(Describe(request) + ": ");
      if (!leaves_) AfterLoss::ProgramKnows();
    } else if (request.name.size() > kMostNameBytes || request.group.size() > kMostNameBytes) {
      refusals[i] = InvalidArgument(StrCat(NamedKindName(request.kind), " '", request.name.substr(0, 100),
                                           "...': a name of ", std::max(request.name.size(), request.group.size()),
                                           " bytes, wanted at most ", kMostNameBytes));
      if (!request.group.empty()) groups.try_emplace(request.group, refusals[i]);
    } else if (is_join ? std::exchange(joins, true) : names_.count(request.name) > 0) {
      refuse("this rank already waits for one of this name");
    } else if (!is_join && works.size() > 1 && !names.insert(request.name).second) {
      refuse("requested twice at once");
    }
  }
  // A group fails as a whole.
  for (size_t i = 0; i < works.size() && !groups.empty(); ++i) {
    const auto found = groups.find(works[i].request.group);
    if (refusals[i].ok() && found != groups.end()) refusals[i] = found->second;
  }
  return refusals;
}

void NamedLane::Send(std::vector<NamedRequest> requests) {
  if (rank() != 0) {
    for (const std::string& message : named_messages::OfRequests(requests)) links_.Send(0, message);
    return;
  }
  const double now = Now();
  for (NamedRequest& request : requests) {
    timeline_.Requested(request, 0);
    // This rank's own requests are never repeated: Refuse prevents that.
    (void)sequencer_.Add(0, std::move(request), now);
  }
}

uint64_t NamedLane::NextNumber(const std::string& text) {
  if (fork_.InFork()) return 0;
  const MutexLock lock(mutex_);
  return numbers_[text]++;
}

void NamedLane::Cancel(uint64_t ticket, const std::string& why) {
  if (fork_.InFork()) return;
  bool wake = false;
  {
    const MutexLock lock(mutex_);
    CancelLocked(ticket, why);
    wake = ResumeDriver();
  }
  if (wake) links_.Wake();
}

void NamedLane::CancelJoin(const std::string& why) {
  if (fork_.InFork()) return;
  bool wake = false;
  {
    const MutexLock lock(mutex_);
    if (!join_) return;
    CancelLocked(*join_, why);
    wake = ResumeDriver();
  }
  if (wake) links_.Wake();
}

void NamedLane::CancelLocked(uint64_t ticket, const std::string& why) {
  const auto found = works_.find(ticket);
  if (found == works_.end()) return;
  const std::string& name = found->second->request.name;
  if (rank() == 0) {
    sequencer_.Cancel(0, name, ticket, Cancelled(StrCat("rank 0: ", why)));
  } else {
    links_.Send(0, named_messages::Of({ticket, name, why}));
  }
}

void NamedLane::Leave(std::string_view how) {
  if (fork_.InFork()) return;
  NamedDeviceExchange* device;
  {
    const MutexLock lock(mutex_);
    if (!leaves_) farewell_ = how;
    leaves_ = true;
    device = device_.get();
  }
  links_.Wake();
  if (device != nullptr) {
    device->Leave(how);
  } else {
    communicator_->Leave(how);
  }
}

int64_t NamedLane::pending() const {
  if (fork_.InFork()) return 0;
  const MutexLock lock(mutex_);
  return static_cast<int64_t>(works_.size()) + on_device_;
}

Status NamedLane::broken() const {
  if (fork_.InFork()) return OkStatus();
  const MutexLock lock(mutex_);
  return leaves_ ? OkStatus() : broken_;
}

Status NamedLane::StartTimeline(const std::string& path, bool mark_cycles) {
  return rank() == 0 && !fork_.InFork() ? timeline_.Start(path, mark_cycles) : OkStatus();
}

Status NamedLane::StopTimeline() { return timeline_.Stop(); }

}  // namespace lockstep
