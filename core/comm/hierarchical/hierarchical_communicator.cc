#include "core/comm/hierarchical/hierarchical_communicator.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/collective/arrivals.h"
#include "core/comm/liveness/peer_end.h"
#include "core/comm/rendezvous/network_addresses.h"

// How ranks of several hosts connect, after the rendezvous has told them their hosts:
//
//   1. the watch begins, over the connections of that rendezvous: from here on a death ends the waits of all ranks;
//   2. the ranks of each host share memory (shm/attach.h);
//   3. each rank of a rail opens a port for each other rank of it;
//   4. a second rendezvous publishes these ports; its connections become the links;
//   5. the rails connect, and all ranks wait for all.

namespace lockstep::hierarchical {
namespace {

// First, the ranks of a late rank's host miss it; then the other hosts, which wait for its leader; and last, the ranks
// that wait for such a waiting leader. Each of these waits this much longer than the one before.
// So the first to give up names the late rank, and not one that waits.
constexpr double kPatience_s = 1;
// The time that a running call has left after the job's end is known.
constexpr double kGrace_s = 0.15;
// The limit of a rank's announcement for another: larger than any memory, and small enough that sums do not overflow.
constexpr int64_t kMostPeerBytes = int64_t{1} << 42;

}  // namespace

Result<std::unique_ptr<Communicator>> HierarchicalCommunicator::Create(const ContextOptions& options, Place place,
                                                                       shm::Group group, RendezvousResult rendezvous,
                                                                       const Deadline& deadline) {
  std::unique_ptr<HierarchicalCommunicator> made(new HierarchicalCommunicator(options, std::move(place), group.index));
  made->StartWatch(options, rendezvous);
  Status status = made->Connect(options, std::move(group), rendezvous, deadline);
  if (status.ok()) {
    made->after_loss_.Begin();
    return std::unique_ptr<Communicator>(std::move(made));
  }
  // The reason why a rank has given up is more useful than the end of its connection, which may be seen first.
  if (status.code() == StatusCode::kUnavailable) {
    made->watch_->AwaitFate(made->rank_, kPatience_s);
    if (const Status verdict = made->Verdict(); !verdict.ok()) status = verdict;
  }
  // The others get the reason, instead of learning that this rank left.
  made->watch_->ReportError(status);
  return status;
}

HierarchicalCommunicator::HierarchicalCommunicator(const ContextOptions& options, Place place, int index)
    : rank_(options.rank),
      size_(options.size),
      place_(std::move(place)),
      index_(index),
      ends_(std::make_shared<Ends>()),
      links_(options.size),
      after_loss_(options.end_after_loss_s, place_.names[options.rank]) {
  size_t fewest = place_.hosts.front().size();
  for (const std::vector<int>& ranks : place_.hosts) {
    fewest = std::min(fewest, ranks.size());
    one_each_ = one_each_ && ranks.size() == 1;
    by_host_.insert(by_host_.end(), ranks.begin(), ranks.end());
  }
  rails_ = static_cast<int>(fewest);
  ranks_follow_hosts_ = std::is_sorted(by_host_.begin(), by_host_.end());
  host_of_.resize(size_);
  for (int host = 0; host < num_hosts(); ++host) {
    for (const int rank : place_.hosts[host]) host_of_[rank] = host;
  }
  if (one_each_) return;
  relay_ranks_.resize(size_);
  for (int host = 0; host < num_hosts(); ++host) {
    for (size_t l = 0; l < place_.hosts[host].size(); ++l) {
      relay_ranks_[place_.hosts[host][l]] = host == place_.host ? locals()[l] : locals()[l % rails_];
    }
  }
}

// The watch's thread calls into the backends, so it ends first.
HierarchicalCommunicator::~HierarchicalCommunicator() {
  Leave({});
  watch_.reset();
}

void HierarchicalCommunicator::StartWatch(const ContextOptions& options, RendezvousResult& rendezvous) {
  const auto on_verdict = [ends = ends_, rank = rank_](const Status& why) {
    const MutexLock lock(ends->mutex);
    ends->verdict = why.WithPrefix(StrCat("rank ", rank, ": "));
    ends->grace.emplace(Deadline::After(kGrace_s));
  };
  const auto on_tick = [ends = ends_, after_loss = &after_loss_] {
    after_loss->Tick();
    const MutexLock lock(ends->mutex);
    const bool over = ends->grace.has_value() && ends->grace->Passed();
    if (over && ends->local != nullptr) ends->local->Break(ends->verdict);
    for (size_t rank = 0; over && ends->watch != nullptr && rank < ends->links.size(); ++rank) {
      if (!ends->links[rank] || ends->watch->fate(static_cast<int>(rank)) != Watch::Fate::kLost) continue;
      (void)shutdown(*std::exchange(ends->links[rank], std::nullopt), SHUT_RDWR);
    }
    if (ends->streams == nullptr) return;
    if (over) (void)ends->streams->Break(ends->verdict);  // only the first end has an effect
    ends->streams->Tick();
  };
  watch_ = std::make_unique<Watch>(WatchOptions{.rank = rank_,
                                                .size = size_,
                                                .key = rendezvous.key,
                                                .places = place_.names,
                                                .silence_s = options.silence_timeout_s,
                                                .on_loss = [this](const Status& why) { after_loss_.Lost(why); }},
                                   std::move(rendezvous.connections), on_verdict, on_tick);
  const MutexLock lock(ends_->mutex);
  ends_->watch = watch_.get();
}

Status HierarchicalCommunicator::Connect(const ContextOptions& options, shm::Group group,
                                         const RendezvousResult& rendezvous, const Deadline& deadline) {
  group.ended = [this] { return Verdict(); };
  auto local = shm::ShmCommunicator::Create(options, std::move(group));
  if (!local.ok()) return local.status().WithPrefix("start of the job: ");
  local_ = *std::move(local);
  {
    const MutexLock lock(ends_->mutex);
    ends_->local = local_.get();
    if (!ends_->verdict.ok()) return ends_->verdict;
  }
  LOCKSTEP_RETURN_IF_ERROR(ConnectRail(options, rendezvous, deadline));
  return Barrier("start of the job");
}

Status HierarchicalCommunicator::Verdict() const { return watch_->verdict().WithPrefix(StrCat("rank ", rank_, ": ")); }

Status HierarchicalCommunicator::ConnectRail(const ContextOptions& options, const RendezvousResult& rendezvous,
                                             const Deadline& deadline) {
  std::string mine;
  if (index_ < rails_) {
    std::string address = rendezvous.own_address;
    if (!options.interface.empty()) {
      LOCKSTEP_ASSIGN_OR_RETURN(address, AddressOf(options.interface));
    }
    std::vector<int> rail;
    for (const std::vector<int>& ranks : place_.hosts) rail.push_back(ranks[index_]);
    LOCKSTEP_ASSIGN_OR_RETURN(auto streams, gloo::Streams::Listen({.index = place_.host,
                                                                   .ranks = std::move(rail),
                                                                   .address = std::move(address),
                                                                   .stall_timeout_s = options.stall_timeout_s +
                                                                                      (one_each_ ? 0 : kPatience_s)}));
    mine = streams->address();
    streams->ask_fate = [this](int rank) { return AskFate(rank); };
    // From here on an error of the streams is an end.
    across_ = std::make_unique<gloo::GlooCommunicator>(std::move(streams));
    const MutexLock lock(ends_->mutex);
    ends_->streams = &across_->streams();
    if (!ends_->verdict.ok()) (void)across_->Break(ends_->verdict);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(RendezvousResult second,
                            JoinRendezvous({.rank = rank_,
                                            .size = size_,
                                            .address = options.rendezvous,
                                            .secret = std::string(AsBytes(rendezvous.key)),
                                            .note = mine,
                                            .timeout_s = std::max(deadline.Left(), 0.1),
                                            .listener = options.listener,
                                            .listen = options.listen,
                                            .ended = [this] { return Verdict(); },
                                            .name = [this](int rank, auto) { return place_.names[rank]; },
                                            .keep_connections = true}));
  links_ = std::move(second.connections);
  link_key_ = second.key;
  {
    const MutexLock lock(ends_->mutex);
    for (const UniqueFd& link : links_) ends_->links.push_back(link.borrowed());
  }
  if (!on_rail()) return OkStatus();
  std::vector<std::string> theirs;
  for (const std::vector<int>& ranks : place_.hosts) theirs.push_back(second.notes[ranks[index_]]);
  return across_->streams().Connect(theirs, second.key, deadline);
}

Status HierarchicalCommunicator::AskFate(int rank) {
  watch_->AwaitFate(rank, kPatience_s);
  const Status verdict = watch_->verdict();
  if (!verdict.ok()) return verdict;
  if (watch_->fate(rank) == Watch::Fate::kLeft) {
    return Unavailable(StrCat("rank ", rank, " left the job while rank ", rank_, " waited for it",
                              Behind(": ", watch_->farewell(rank))));
  }
  // Without rank 0 nothing reports about the others; most of them end because rank 0 left.
  if (rank_ != 0 && watch_->fate(0) == Watch::Fate::kLeft) {
    return Unavailable(StrCat("rank 0 left the job, then the connection to rank ", rank, " ended"));
  }
  return OkStatus();
}

HierarchicalCommunicator::Calling::Calling(HierarchicalCommunicator& communicator, CallKind kind, std::string_view name)
    : communicator_(communicator) {
  communicator_.calling_.lock();
  communicator_.kind_ = kind;
  communicator_.name_ = name;
  communicator_.local_->SetNameInErrors(kind);
  communicator_.local_->set_patience(0);
  if (communicator_.across_ != nullptr) communicator_.across_->SetNameInErrors(kind);
}

HierarchicalCommunicator::Calling::~Calling() { communicator_.calling_.unlock(); }

// An end of one backend is passed to the other one, to the watch and so to all ranks, before it is returned. The
// watch's reason has priority over a backend's.
Status HierarchicalCommunicator::CheckUsable() {
  const Status verdict = watch_->verdict();
  if (!verdict.ok()) [[unlikely]]
    local_->Break(verdict);
  return FoldError(OkStatus());
}

Status HierarchicalCommunicator::FoldError(const Status& status) {
  if (!broken()) [[likely]]
    return status;
  AfterLoss::ProgramKnows();
  if (!end_.ok()) return end_;
  const Status verdict = watch_->verdict();
  end_ = status;
  if (!verdict.ok()) {
    end_ = verdict.WithPrefix(StrCat("rank ", rank_, ": ", CallKindName(kind_), " '", name_, "' ended, because "));
  } else if (status.ok()) {
    // Between two calls, or after one that still succeeded.
    end_ = across_ != nullptr && across_->broken() ? across_->streams().error() : local_->CheckUsable();
  }
  if (across_ != nullptr) (void)across_->Break(end_);  // only the first end has an effect
  local_->Break(end_);
  watch_->ReportError(end_);
  if (end_.code() == StatusCode::kUnavailable || !verdict.ok()) peer_end::Note(end_);
  return end_;
}

Status HierarchicalCommunicator::RunAsLeader(std::string_view name, const Status& outcome,
                                             const std::function<Status()>& work) {
  if (!leads() || local_->broken()) return outcome;
  // From here on the others of this host may wait for the peers that this rank waits for.
  return FoldError(outcome.ok() ? work() : across_->Decline(name, outcome, /*verbatim=*/true));
}

Status HierarchicalCommunicator::PublishResult(std::string_view name, const Status& outcome, int64_t bytes,
                                               void* data) {
  if (!end_.ok()) return end_;
  local_->set_patience(2 * kPatience_s);
  if (!outcome.ok() && leads()) return FoldError(local_->Decline(name, outcome, /*verbatim=*/true));
  // All ranks of this host have come: the leader is late only because another host is.
  local_->set_peers_are_late(false);
  const Status status = local_->Broadcast(name, 0, bytes, data);
  local_->set_peers_are_late(true);
  return FoldError(status);
}

void HierarchicalCommunicator::CountWaits(LaneCounters* counters) {
  local_->CountWaits(counters);
  if (across_ != nullptr) across_->CountWaits(counters);
}

Result<std::vector<int64_t>> HierarchicalCommunicator::Agree(const Call& call, std::span<const int64_t> mine) {
  // At least one: an exchange of nothing would have no memory.
  static constexpr int64_t kNothing = 0;
  if (mine.empty()) mine = std::span(&kNothing, 1);
  const auto each = static_cast<int64_t>(mine.size());
  const Item item = {DType::kInt64, each};
  std::vector<int64_t> of_host(locals().size() * mine.size());
  const std::vector<int64_t> one_each(locals().size(), 1);
  Status status = FoldError(
      local_->AllGatherAs(call, item, 1, mine.data(), lockstep::Expecting(call.name, one_each, of_host.data())));
  std::vector<int64_t> by_host(static_cast<size_t>(size_) * mine.size());
  std::vector<int64_t> sizes;
  for (const std::vector<int>& ranks : place_.hosts) sizes.push_back(static_cast<int64_t>(ranks.size()));
  status = RunAsLeader(call.name, status, [&]() LOCKSTEP_REQUIRES(calling_) {
    return across_->AllGatherAs(call, item, sizes[place_.host], of_host.data(), Expecting(sizes, by_host.data()));
  });
  LOCKSTEP_RETURN_IF_ERROR(
      PublishResult(call.name, status, static_cast<int64_t>(by_host.size() * sizeof(int64_t)), by_host.data()));
  const int64_t most = kMostPeerBytes / std::max<int64_t>(1, Item{call.dtype, call.width}.bytes());
  for (size_t i = 0; i < by_host.size(); ++i) {
    if (by_host[i] >= 0 && by_host[i] <= most) continue;
    return Break(DataLoss(StrCat("rank ", rank_, ": rank ", by_host_[i / each], " announces ", by_host[i], " items in ",
                                 CallKindName(kind_), " '", name_, "', at most ", most)));
  }
  if (ranks_follow_hosts_) return by_host;
  std::vector<int64_t> by_rank(by_host.size());
  for (int i = 0; i < size_; ++i) {
    std::copy_n(by_host.begin() + i * each, each, by_rank.begin() + by_host_[i] * each);
  }
  return by_rank;
}

Allocate HierarchicalCommunicator::Expecting(std::vector<int64_t> wanted, void* memory) {
  return [this, wanted = std::move(wanted), memory](std::span<const int64_t> counts) -> Result<void*> {
    calling_.AssertHeld();  // it runs within the call
    for (size_t host = 0; host < wanted.size(); ++host) {
      if (counts[host] == wanted[host]) continue;
      return across_->Break(
          DataLoss(StrCat("rank ", rank_, ": rank ", place_.hosts[host][index_], " sends ", counts[host], " items in ",
                          CallKindName(kind_), " '", name_, "' after it has announced ", wanted[host])));
    }
    return memory;
  };
}

Status HierarchicalCommunicator::Break(const Status& why) {
  local_->Break(why);
  return FoldError(why);
}

Status HierarchicalCommunicator::Barrier(std::string_view name) {
  return Observe(CallKind::kBarrier, name, 0, 0, [&]() -> Status {
    const Calling calling(*this, CallKind::kBarrier, name);
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable());
    if (one_each_) return FoldError(across_->Barrier(name));
    return Agree({.kind = CallKind::kBarrier, .name = name}).status();
  });
}

Status HierarchicalCommunicator::Decline(std::string_view name, const Status& why) {
  return Observe(CallKind::kDecline, name, 0, 0, [&]() -> Status {
    if (why.ok()) return InvalidArgument("Decline needs an error that says why");
    const Calling calling(*this, CallKind::kDecline, name);
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable());
    if (one_each_) return FoldError(across_->Decline(name, why));
    const Status status = RunAsLeader(name, FoldError(local_->Decline(name, why)), [] { return OkStatus(); });
    return PublishResult(name, status, 0, nullptr);
  });
}

Result<std::vector<int64_t>> HierarchicalCommunicator::Compare(const Call& call, std::span<const int64_t> values) {
  std::vector<int64_t> all;
  LOCKSTEP_RETURN_IF_ERROR(Observe(call.kind, call.name, 0, 0, [&]() -> Status {
    const Calling calling(*this, call.kind, call.name);
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable());
    LOCKSTEP_ASSIGN_OR_RETURN(all, Agree(call, values));
    return OkStatus();
  }));
  return all;
}

// The next call, or the running one, reports it as an end of its own.
void HierarchicalCommunicator::End(const Status& error) {
  watch_->ReportError(error);
  if (across_ != nullptr) (void)across_->Break(error);
  local_->End(error);
}

// Only the first end has an effect, with the text of the rank that saw it.
void HierarchicalCommunicator::Abort(const Status& why) {
  const std::string reason = why.code() == StatusCode::kCancelled ? why.message() : why.ToString();
  watch_->ReportError(Cancelled(StrCat("rank ", rank_, " aborted the job: ", reason)));
  if (across_ != nullptr) (void)across_->Break(Cancelled(reason));
  local_->Abort(why);
}

// Ends a running collective; without one, sent data arrives first.
void HierarchicalCommunicator::Leave(std::string_view how) {
  if (local_ == nullptr || fork_.InFork()) return;
  after_loss_.Leave();
  if (across_ != nullptr && calling_.try_lock()) {
    across_->Flush();
    calling_.unlock();
  }
  watch_->Leave(how);
  local_->Leave(how);
  if (across_ != nullptr) (void)across_->Break(Cancelled(StrCat("rank ", rank_, " has left the job")));
}

}  // namespace lockstep::hierarchical
