#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/collective/arguments.h"
#include "core/comm/collective/arrivals.h"
#include "core/comm/hierarchical/hierarchical_communicator.h"

// Broadcast, AllGatherV and AllToAllV over several hosts. After the comparison all ranks know all sizes, so the later
// parts cannot disagree. A rank without memory for received data takes part with memory that is thrown away.

namespace lockstep::hierarchical {
namespace {

// The memory for received data: the caller's, or its own if the caller has none.
struct Output {
  Output(CallKind kind, std::string_view name, std::span<const int64_t> counts, int64_t width, const Allocate& allocate)
      : received(AllocateFor(CallKindName(kind), name, counts, width, allocate)), data(received.data) {
    if (data != nullptr) return;
    spare.reset(new (std::nothrow) char[static_cast<size_t>(SumOf(counts) * width)]);
    data = spare.get();
  }
  Received received;
  char* data;  // null if there is no memory at all
  std::unique_ptr<char[]> spare;
};

// Appends bytes one after another, [enough].
class Packer {
 public:
  explicit Packer(char* memory) : next_(memory) {}
  void Add(const char* from, int64_t bytes) {
    if (bytes > 0) std::memcpy(next_, from, static_cast<size_t>(bytes));
    next_ += bytes;
  }

 private:
  char* next_;
};

}  // namespace

void HierarchicalCommunicator::ToHostOrder(std::span<const int64_t> counts, int64_t width, const char* by_rank,
                                           char* by_host) const {
  std::vector<int64_t> starts(size_);
  for (int r = 1; r < size_; ++r) starts[r] = starts[r - 1] + counts[r - 1];
  for (const int r : by_host_) {
    if (counts[r] > 0) std::memcpy(by_host, by_rank + starts[r] * width, static_cast<size_t>(counts[r] * width));
    by_host += counts[r] * width;
  }
}

void HierarchicalCommunicator::ToRankOrder(std::span<const int64_t> counts, int64_t width, const char* by_host,
                                           char* by_rank) const {
  std::vector<int64_t> starts(size_);
  for (int r = 1; r < size_; ++r) starts[r] = starts[r - 1] + counts[r - 1];
  for (const int r : by_host_) {
    if (counts[r] > 0) std::memcpy(by_rank + starts[r] * width, by_host, static_cast<size_t>(counts[r] * width));
    by_host += counts[r] * width;
  }
}

// On the root's host the root sends; between hosts its leader; on the other hosts their leaders.
Status HierarchicalCommunicator::Broadcast(std::string_view name, int root, int64_t bytes, void* data) {
  const bool sends = rank_ == root;
  return Observe(CallKind::kBroadcast, name, sends ? bytes : 0, sends ? 0 : bytes, [&]() -> Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckBroadcast(name, size_, root, bytes, data));
    const Calling calling(*this, CallKind::kBroadcast, name);
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable());
    const int root_host = host_of_[root];
    const std::vector<int>& with_root = place_.hosts[root_host];
    const auto root_index = static_cast<int>(std::find(with_root.begin(), with_root.end(), root) - with_root.begin());
    if (one_each_) return FoldError(across_->Broadcast(name, root_host, bytes, data));
    LOCKSTEP_RETURN_IF_ERROR(
        Agree({.kind = CallKind::kBroadcast, .name = name, .root = root, .count = bytes}).status());
    const bool on_roots_host = place_.host == root_host;
    if (on_roots_host) LOCKSTEP_RETURN_IF_ERROR(FoldError(local_->Broadcast(name, root_index, bytes, data)));
    if (leads()) LOCKSTEP_RETURN_IF_ERROR(FoldError(across_->Broadcast(name, root_host, bytes, data)));
    return on_roots_host ? OkStatus() : FoldError(local_->Broadcast(name, 0, bytes, data));
  });
}

// First to the leader, then between the leaders, then from the leader to all.
Status HierarchicalCommunicator::AllGatherV(std::string_view name, Item item, int64_t count, const void* in,
                                            const Allocate& allocate) {
  ReceivedBytes from_peers(allocate, rank_, item);
  return Observe(CallKind::kAllGatherV, name, count * item.bytes(), from_peers.bytes(), [&]() -> Status {
    const Calling calling(*this, CallKind::kAllGatherV, name);
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable());
    if (one_each_) return FoldError(across_->AllGatherV(name, item, count, in, from_peers.Counting()));
    LOCKSTEP_RETURN_IF_ERROR(CheckAllGather(name, item, count, in));
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> counts, Agree({.kind = CallKind::kAllGatherV,
                                                                        .name = name,
                                                                        .dtype = item.dtype,
                                                                        .width = item.width,
                                                                        .count = count,
                                                                        .count_agrees = false},
                                                                       std::span(&count, 1)));
    LOCKSTEP_RETURN_IF_ERROR(CheckAnnouncedItems(counts, item.bytes()));
    Output output(CallKind::kAllGatherV, name, counts, item.bytes(), from_peers.Counting());
    if (output.data == nullptr) return NoMemory(SumOf(counts) * item.bytes());
    const Scratch by_host = AllocateScratch(ranks_follow_hosts_ ? 0 : SumOf(counts) * item.bytes());
    char* const all = ranks_follow_hosts_ ? output.data : by_host.data;
    Scratch of_host;
    std::vector<int64_t> to_leader(locals().size());
    to_leader[0] = count;
    LOCKSTEP_RETURN_IF_ERROR(FoldError(local_->AllToAllV(name, item, to_leader, in, Into(item, of_host))));
    if (leads()) {
      std::vector<int64_t> of_hosts;
      for (const std::vector<int>& ranks : place_.hosts) {
        of_hosts.push_back(0);
        for (const int rank : ranks) of_hosts.back() += counts[rank];
      }
      const int64_t own = of_hosts[place_.host];
      LOCKSTEP_RETURN_IF_ERROR(
          FoldError(across_->AllGatherV(name, item, own, of_host.data, Expecting(std::move(of_hosts), all))));
    }
    LOCKSTEP_RETURN_IF_ERROR(FoldError(local_->Broadcast(name, 0, SumOf(counts) * item.bytes(), all)));
    if (!ranks_follow_hosts_) ToRankOrder(counts, item.bytes(), all, output.data);
    return output.received.status;
  });
}

// Inside of the host to the relay rank for the receiver, then over the rail to the receiver's host, and there from the
// relay rank to the receiver, if that is another rank. Items for the same host come with the first part. At each place
// items are sorted by receiver and then by sender, so all ranks know their places: rank s sends sent[s * R + t] items
// to rank t.
Status HierarchicalCommunicator::AllToAllV(std::string_view name, Item item, std::span<const int64_t> send_counts,
                                           const void* in, const Allocate& allocate) {
  const int64_t own = send_counts.size() == static_cast<size_t>(size_) ? send_counts[rank_] : 0;
  const int64_t to_peers = (SumOf(send_counts) - own) * item.bytes();
  ReceivedBytes from_peers(allocate, rank_, item);
  return Observe(CallKind::kAllToAllV, name, to_peers, from_peers.bytes(), [&]() -> Status {
    const Calling calling(*this, CallKind::kAllToAllV, name);
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable());
    if (one_each_) return FoldError(across_->AllToAllV(name, item, send_counts, in, from_peers.Counting()));
    LOCKSTEP_RETURN_IF_ERROR(CheckAllToAll(name, item, size_, send_counts, in));
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> sent, Agree({.kind = CallKind::kAllToAllV,
                                                                      .name = name,
                                                                      .dtype = item.dtype,
                                                                      .width = item.width,
                                                                      .count_agrees = false},
                                                                     send_counts));
    LOCKSTEP_RETURN_IF_ERROR(CheckAnnouncedItems(OfThisHost(sent), item.bytes()));
    std::vector<int64_t> incoming(size_);
    for (int s = 0; s < size_; ++s) incoming[s] = sent[s * size_ + rank_];
    Output output(CallKind::kAllToAllV, name, incoming, item.bytes(), from_peers.Counting());
    if (output.data == nullptr) return NoMemory(SumOf(incoming) * item.bytes());
    Scratch first, second;
    LOCKSTEP_RETURN_IF_ERROR(ToRelays(name, item, send_counts, static_cast<const char*>(in), first));
    if (LeavesHosts(sent)) {
      LOCKSTEP_RETURN_IF_ERROR(OverRails(name, item, sent, first, second));
      if (static_cast<int>(locals().size()) > rails_) LOCKSTEP_RETURN_IF_ERROR(FromRelays(name, item, sent, second));
    }

    // By sender: items of this host's ranks are in `first`, each before the items to be relayed; the
    // others are in `second`, host by host.
    std::vector<const char*> from(size_);
    const char* next = first.data;
    for (const int s : locals()) {
      from[s] = next;
      next += (incoming[s] + (on_rail() ? RelayedBy(index_, s, sent) : 0)) * item.bytes();
    }
    next = second.data;
    for (int host = 0; host < num_hosts(); ++host) {
      if (host == place_.host) continue;
      for (const int s : place_.hosts[host]) {
        from[s] = next;
        next += incoming[s] * item.bytes();
      }
    }
    char* to = output.data;
    for (int s = 0; s < size_; ++s) {
      const int64_t bytes = incoming[s] * item.bytes();
      if (bytes > 0) std::memcpy(to, from[s], static_cast<size_t>(bytes));
      to += bytes;
    }
    return output.received.status;
  });
}

// By sender, the items that come from this host's ranks or go to them: all of them are in this machine's memory.
std::vector<int64_t> HierarchicalCommunicator::OfThisHost(std::span<const int64_t> sent) const {
  std::vector<int64_t> items(size_);
  for (int s = 0; s < size_; ++s) {
    for (int t = 0; t < size_; ++t) {
      if (host_of_[s] == place_.host || host_of_[t] == place_.host) items[s] += sent[s * size_ + t];
    }
  }
  return items;
}

Status HierarchicalCommunicator::CheckAnnouncedItems(std::span<const int64_t> counts, int64_t item_bytes) {
  const Status possible = CheckAnnounced(name_, counts, item_bytes);
  return possible.ok() ? possible : Break(possible.WithPrefix(StrCat("rank ", rank_, ": ", CallKindName(kind_), " ")));
}

Status HierarchicalCommunicator::NoMemory(int64_t bytes) {
  return Break(ResourceExhausted(
      StrCat("rank ", rank_, ": no memory for ", bytes, " bytes in ", CallKindName(kind_), " '", name_, "'")));
}

// Returns the number of items from rank s of this host for the other hosts' ranks that rank l of a host relays for.
int64_t HierarchicalCommunicator::RelayedBy(int l, int s, std::span<const int64_t> sent) const {
  int64_t items = 0;
  ForRelayed(l, [&](int t) { items += sent[s * size_ + t]; });
  return items;
}

bool HierarchicalCommunicator::LeavesHosts(std::span<const int64_t> sent) const {
  for (int s = 0; s < size_; ++s) {
    for (int t = 0; t < size_; ++t) {
      if (host_of_[s] != host_of_[t] && sent[s * size_ + t] > 0) return true;
    }
  }
  return false;
}

template <typename Work>
void HierarchicalCommunicator::ForRelayed(int l, const Work& work) const {
  for (int host = 0; host < num_hosts(); ++host) {
    if (host != place_.host) ForRelayedOnHost(host, l, work);
  }
}

template <typename Work>
void HierarchicalCommunicator::ForRelayedOnHost(int host, int l, const Work& work) const {
  const std::vector<int>& ranks = place_.hosts[host];
  for (size_t t = l; t < ranks.size() && l < rails_; t += rails_) work(ranks[t]);
}

// Sends to each rank of the host the items for it, and then the items that it relays.
Status HierarchicalCommunicator::ToRelays(std::string_view name, Item item, std::span<const int64_t> send_counts,
                                          const char* in, Scratch& out) {
  std::vector<int64_t> starts(size_), counts(locals().size());
  for (int t = 1; t < size_; ++t) starts[t] = starts[t - 1] + send_counts[t - 1];
  const Scratch packed = AllocateScratch(SumOf(send_counts) * item.bytes());
  Packer packer(packed.data);
  for (size_t l = 0; l < locals().size(); ++l) {
    const auto add = [&](int t) {
      packer.Add(in + starts[t] * item.bytes(), send_counts[t] * item.bytes());
      counts[l] += send_counts[t];
    };
    add(locals()[l]);
    ForRelayed(static_cast<int>(l), add);
  }
  return FoldError(local_->AllToAllV(name, item, counts, packed.data, Into(item, out)));
}

// Sends the items for other hosts to these hosts, by receiver and sender.
Status HierarchicalCommunicator::OverRails(std::string_view name, Item item, std::span<const int64_t> sent,
                                           const Scratch& relayed, Scratch& out) {
  if (!on_rail()) return OkStatus();
  // The place of each local sender's items for a receiver: after its items for this rank.
  std::vector<const char*> next;
  const char* at = relayed.data;
  for (const int s : locals()) {
    next.push_back(at + sent[s * size_ + rank_] * item.bytes());
    at = next.back() + RelayedBy(index_, s, sent) * item.bytes();
  }
  std::vector<int64_t> counts(num_hosts());
  const Scratch packed = AllocateScratch(relayed.bytes);
  Packer packer(packed.data);
  for (int host = 0; host < num_hosts(); ++host) {
    if (host == place_.host) continue;
    ForRelayedOnHost(host, index_, [&](int t) {
      for (size_t l = 0; l < locals().size(); ++l) {
        const int64_t items = sent[locals()[l] * size_ + t];
        packer.Add(next[l], items * item.bytes());
        next[l] += items * item.bytes();
        counts[host] += items;
      }
    });
  }
  std::vector<int64_t> incoming(num_hosts());
  for (int host = 0; host < num_hosts(); ++host) {
    if (host == place_.host) continue;
    ForRelayedOnHost(place_.host, index_, [&](int t) {
      for (const int s : place_.hosts[host]) incoming[host] += sent[s * size_ + t];
    });
  }
  out = AllocateScratch(SumOf(incoming) * item.bytes());
  return FoldError(across_->AllToAllV(name, item, counts, packed.data, Expecting(std::move(incoming), out.data)));
}

// Sends items from the relay ranks of this host to their receivers. `items`: the data from the rail, by host, receiver
// and sender; becomes the data for this rank, by host and sender.
Status HierarchicalCommunicator::FromRelays(std::string_view name, Item item, std::span<const int64_t> sent,
                                            Scratch& items) {
  std::vector<int64_t> counts(locals().size());
  std::vector<std::vector<const char*>> pieces(locals().size());
  const auto for_other_hosts = [&](const auto& work) {
    for (int host = 0; host < num_hosts(); ++host) {
      if (host != place_.host) work(place_.hosts[host]);
    }
  };
  const auto items_from = [&](const std::vector<int>& senders, int t) {
    int64_t sum = 0;
    for (const int s : senders) sum += sent[s * size_ + t];
    return sum;
  };
  const char* at = items.data;
  for_other_hosts([&](const std::vector<int>& senders) {
    for (size_t l = index_; on_rail() && l < locals().size(); l += rails_) {
      pieces[l].push_back(at);
      at += items_from(senders, locals()[l]) * item.bytes();
    }
  });
  const Scratch packed = AllocateScratch(items.bytes);
  Packer packer(packed.data);
  for (size_t l = 0; l < locals().size(); ++l) {
    size_t piece = 0;
    for_other_hosts([&](const std::vector<int>& senders) {
      if (pieces[l].empty()) return;
      const int64_t number = items_from(senders, locals()[l]);
      packer.Add(pieces[l][piece++], number * item.bytes());
      counts[l] += number;
    });
  }
  Scratch mine;
  LOCKSTEP_RETURN_IF_ERROR(FoldError(local_->AllToAllV(name, item, counts, packed.data, Into(item, mine))));
  items = std::move(mine);
  return OkStatus();
}

Allocate HierarchicalCommunicator::Into(Item item, Scratch& scratch) {
  return [this, item, &scratch](std::span<const int64_t> counts) -> Result<void*> {
    scratch = AllocateScratch(SumOf(counts) * item.bytes());
    return static_cast<void*>(scratch.data);
  };
}

// Shared memory gets the same pages again each time, and the other ranks of the host read it in place.
HierarchicalCommunicator::Scratch HierarchicalCommunicator::AllocateScratch(int64_t bytes) {
  Scratch scratch;
  scratch.bytes = bytes;
  if (bytes > shm::kSlotBytes) scratch.shared = local_->AllocateShared(bytes);
  if (scratch.shared == nullptr) scratch.own = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(bytes));
  scratch.data = scratch.shared != nullptr ? static_cast<char*>(scratch.shared->data()) : scratch.own.get();
  return scratch;
}

}  // namespace lockstep::hierarchical
