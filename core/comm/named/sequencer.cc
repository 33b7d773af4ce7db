#include "core/comm/named/sequencer.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "core/base/strings.h"

namespace lockstep {
namespace {

constexpr uint64_t kNoTicket = NamedBatch::kNoTicket;

// The most bytes of a batch in a message: far less than the longest message (control_links.h), and more than any useful
// batch needs.
constexpr int64_t kMostWireBytes = int64_t{16} << 20;

std::string RankText(const std::vector<int>& ranks) {
  return StrCat(ranks.size() > 1 ? "ranks " : "rank ", JoinWithAnd(ranks));
}

// "a, b, c and 4 more"
std::string Some(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += StrCat(i > 0 ? ", '" : "'", names[i], "'");
  return names.size() > kShown ? StrCat(text, " and ", names.size() - kShown, " more") : text;
}

}  // namespace

Sequencer::Sequencer(const SequencerOptions& options) : options_(options), joins_(options.ranks, kNoTicket) {}

Status Sequencer::Add(int rank, NamedRequest request, double now) {
  if (request.kind == NamedKind::kJoin) return Join(rank, std::move(request));
  const auto before = pending_.find(request.name);
  if (before != pending_.end() && before->second.made[rank]) {
    return DataLoss(StrCat("rank ", rank, " asked for ", Describe(request), " again, before it was answered"));
  }
  if (const Status failure = TakeEarlierFailure(rank, request); !failure.ok()) {
    Answer(rank, std::move(request), failure);
    return OkStatus();
  }
  const std::string name = request.name;
  auto [found, is_new] = pending_.try_emplace(name);
  Pending& pending = found->second;
  if (is_new) {
    pending.requests.resize(options_.ranks);
    pending.made.assign(options_.ranks, false);
    pending.since = now;
  }
  if (!request.group.empty()) {
    Group& group = groups_[request.group];
    group.brought.resize(options_.ranks);
    group.wanted.resize(options_.ranks);
    const auto in_it = [&](const NamedRequest& other) { return other.group == request.group; };
    if (std::none_of(pending.requests.begin(), pending.requests.end(), in_it)) group.names.push_back(name);
    ++group.brought[rank];
    group.wanted[rank] = request.group_size;
    if (touched_groups_.empty() || touched_groups_.back() != request.group) touched_groups_.push_back(request.group);
  }
  pending.requests[rank] = std::move(request);
  pending.made[rank] = true;
  pending.last_rank = rank;
  if (!pending.complete && IsComplete(pending)) {
    pending.complete = true;
    complete_.push_back(name);
  }
  return OkStatus();
}

std::vector<NamedBatch> Sequencer::Take() {
  CollectComplete();
  std::vector<NamedBatch> batches;
  std::vector<int64_t> bytes, wire_bytes;
  for (NamedBatch& ready : std::exchange(ready_, {})) {
    int64_t size = 0, wire_size = 0;
    for (const NamedBatch::Entry& entry : ready.entries) {
      // A failed entry may have any size, as the ranks may disagree about it; no other entry joins it. The sum of a
      // group is limited.
      if (ready.error.ok()) size = std::min(size + TensorBytes(entry), kMostTensorBytes);
      wire_size += WireBytes(entry);
    }
    // Puts it into the first batch that it fits into, or into a new one.
    size_t at = 0;
    const auto fits = [&] {
      return ready.error.ok() && batches[at].error.ok() && bytes[at] + size <= options_.fusion_bytes &&
             wire_bytes[at] + wire_size <= kMostWireBytes &&
             CanTravelTogether(batches[at].entries.front().request, ready.entries.front().request);
    };
    while (at < batches.size() && !fits()) ++at;
    if (at == batches.size()) {
      batches.push_back(std::move(ready));
      bytes.push_back(size);
      wire_bytes.push_back(wire_size);
    } else {
      std::move(ready.entries.begin(), ready.entries.end(), std::back_inserter(batches[at].entries));
      bytes[at] += size;
      wire_bytes[at] += wire_size;
    }
  }
  return batches;
}

std::vector<Sequencer::Wait> Sequencer::Waiting() const {
  std::vector<Wait> waits;
  for (const auto& [name, pending] : pending_) {
    Wait wait = {name, {}, pending.since, {}};
    std::vector<bool> missing(options_.ranks, false);
    for (int rank = 0; rank < options_.ranks; ++rank) {
      missing[rank] = !pending.made[rank];
      if (!pending.made[rank]) continue;
      const NamedRequest& request = pending.requests[rank];
      wait.kind = request.kind;
      if (request.group.empty() || !pending.complete) continue;
      const Group& group = groups_.at(request.group);
      for (int other = 0; other < options_.ranks; ++other) {
        missing[other] = missing[other] || group.brought[other] < request.group_size;
      }
    }
    for (int rank = 0; rank < options_.ranks; ++rank) {
      if (missing[rank] && !HasJoined(rank)) wait.missing.push_back(rank);
    }
    waits.push_back(std::move(wait));
  }
  return waits;
}

double Sequencer::WaitingSince() const {
  double since = std::numeric_limits<double>::infinity();
  for (const auto& [name, pending] : pending_) since = std::min(since, pending.since);
  return since;
}

void Sequencer::Fail(const std::string& name, const Status& why) {
  CollectComplete();
  if (pending_.count(name) > 0) FailWhole(name, why);
}

void Sequencer::Cancel(int rank, const std::string& name, uint64_t ticket, const Status& why) {
  CollectComplete();
  if (HasJoined(rank) && joins_[rank] == ticket) {
    joins_[rank] = kNoTicket;
    // Requests that were complete without this rank, and wait for their group, now miss the rank.
    for (auto& [pending_name, pending] : pending_) {
      if (!pending.complete || IsComplete(pending)) continue;
      pending.complete = false;
      const auto made = std::find(pending.made.begin(), pending.made.end(), true) - pending.made.begin();
      --groups_.at(pending.requests[made].group).complete;
    }
    NamedRequest join;
    join.kind = NamedKind::kJoin;
    join.name = name;
    join.ticket = ticket;
    return Answer(rank, std::move(join), why);
  }
  const auto found = pending_.find(name);
  if (found == pending_.end()) return;
  const Pending& pending = found->second;
  if (pending.made[rank] && pending.requests[rank].ticket == ticket) FailWhole(name, why);
}

bool Sequencer::IsComplete(const Pending& pending) const {
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (!pending.made[rank] && !HasJoined(rank)) return false;
  }
  return true;
}

// Called when everything that came together has been added, so that no member comes after the others of a failed group.
void Sequencer::CollectComplete() {
  for (const std::string& name : std::exchange(complete_, {})) Complete(name);
  for (const std::string& group : std::exchange(touched_groups_, {})) FailIfInconsistent(group);
}

void Sequencer::Complete(const std::string& name) {
  const auto found = pending_.find(name);
  // It may have failed with its group, and may even have been requested again.
  if (found == pending_.end() || !found->second.complete) return;
  const Pending& pending = found->second;
  if (const Status status = CheckComplete(pending); !status.ok()) return FailWhole(name, status);
  const auto made = std::find(pending.made.begin(), pending.made.end(), true) - pending.made.begin();
  const NamedRequest& request = pending.requests[made];
  if (request.group.empty()) return Ready({name}, OkStatus());
  const auto group = groups_.find(request.group);
  // Names in the group that not all ranks have may still come, and end it: they are not left over.
  if (++group->second.complete < request.group_size || group->second.names.size() > request.group_size) return;
  const std::vector<std::string> names = std::move(group->second.names);
  groups_.erase(group);
  Ready(names, OkStatus());
}

void Sequencer::FailIfInconsistent(const std::string& group_name) {
  const auto found = groups_.find(group_name);
  if (found == groups_.end()) return;
  const Group& group = found->second;
  const std::string any = group.names.front();
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (group.brought[rank] <= group.wanted[rank]) continue;
    return FailWhole(
        any, FailedPrecondition(StrCat("group '", group_name, "': rank ", rank, " requested ", group.brought[rank],
                                       " tensors, wanted the ", group.wanted[rank], " that it announced")));
  }
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (!HasJoined(rank) && (group.brought[rank] == 0 || group.brought[rank] < group.wanted[rank])) return;
  }
  FailWhole(any, FailedPrecondition(
                     StrCat("group '", group_name, "': the ranks differ in its tensors: ", DifferenceIn(group))));
}

std::string Sequencer::DifferenceIn(const Group& group) const {
  std::string text;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    std::vector<std::string> own;
    for (const std::string& name : group.names) {
      const Pending& pending = pending_.at(name);
      if (!pending.complete && pending.made[rank]) own.push_back(name);
    }
    if (group.brought[rank] == 0) continue;
    text += StrCat(text.empty() ? "" : "; ", "rank ", rank, " has ", group.brought[rank], " of ", group.wanted[rank]);
    if (!own.empty()) text += StrCat(", among them ", Some(own));
  }
  return text;
}

void Sequencer::FailWhole(const std::string& name, const Status& why) {
  std::vector<std::string> names = {name};
  std::set<std::string> seen = {name};
  for (size_t i = 0; i < names.size(); ++i) {
    for (const NamedRequest& request : pending_.at(names[i]).requests) {
      const auto found = request.group.empty() ? groups_.end() : groups_.find(request.group);
      if (found == groups_.end()) continue;
      const Group group = std::move(found->second);
      groups_.erase(found);
      for (const std::string& member : group.names) {
        if (seen.insert(member).second) names.push_back(member);
      }
      Failure failure = {why, std::vector<uint32_t>(options_.ranks, 0)};
      uint32_t left = 0;
      for (int rank = 0; rank < options_.ranks; ++rank) {
        if (group.brought[rank] == 0 || group.brought[rank] >= group.wanted[rank]) continue;
        left += failure.left[rank] = group.wanted[rank] - group.brought[rank];
      }
      if (left == 0) continue;
      const auto [before, is_first] = failed_groups_.try_emplace(request.group, failure);
      for (int rank = 0; rank < options_.ranks && !is_first; ++rank) before->second.left[rank] += failure.left[rank];
    }
  }
  Ready(names, why);
}

void Sequencer::Ready(const std::vector<std::string>& names, const Status& error) {
  NamedBatch batch;
  batch.error = error;
  int64_t wire_bytes = 0;
  for (const std::string& name : names) {
    const auto found = pending_.find(name);
    const Pending pending = std::move(found->second);
    pending_.erase(found);
    NamedBatch::Entry entry = EntryOf(pending);
    if (!entry.request.family.empty()) {
      Failure failure = {error, std::vector<uint32_t>(options_.ranks, 0)};
      for (int rank = 0; rank < options_.ranks; ++rank) failure.left[rank] = pending.made[rank] ? 0 : 1;
      if (error.ok())
        failure.why = FailedPrecondition(StrCat(Describe(entry.request), ": it ran while this rank had joined"));
      if (std::count(failure.left.begin(), failure.left.end(), 1) > 0) failed_numbers_[name] = std::move(failure);
    }
    wire_bytes += WireBytes(entry);
    // A group may hold what does not fit into one exchange or one message: then its parts are done one after the other.
    if (!batch.entries.empty() && (wire_bytes > kMostWireBytes ||
                                   (error.ok() && !CanTravelTogether(batch.entries.front().request, entry.request)))) {
      ready_.push_back(std::exchange(batch, {{}, error}));
      wire_bytes = WireBytes(entry);
    }
    batch.entries.push_back(std::move(entry));
  }
  ready_.push_back(std::move(batch));
}

Status Sequencer::TakeEarlierFailure(int rank, const NamedRequest& request) {
  const auto take = [&](std::map<std::string, Failure>& failures, const std::string& key) {
    const auto found = failures.find(key);
    if (found == failures.end() || found->second.left[rank] == 0) return OkStatus();
    std::vector<uint32_t>& left = found->second.left;
    --left[rank];
    const Status why = found->second.why;
    if (std::all_of(left.begin(), left.end(), [](uint32_t of_rank) { return of_rank == 0; })) failures.erase(found);
    return why;
  };
  Status why;
  if (!request.group.empty()) why = take(failed_groups_, request.group);
  if (!request.family.empty()) {
    const Status of_number = take(failed_numbers_, request.name);
    if (why.ok()) why = of_number;
  }
  return why;
}

void Sequencer::Answer(int rank, NamedRequest request, const Status& error) {
  NamedBatch::Entry entry;
  entry.tickets.assign(options_.ranks, kNoTicket);
  entry.tickets[rank] = std::exchange(request.ticket, 0);
  entry.rows.assign(options_.ranks, 0);
  if (request.kind == NamedKind::kAllToAll) {
    entry.splits.assign(options_.ranks, std::vector<int64_t>(options_.ranks, 0));
  }
  entry.request = std::move(request);
  ready_.push_back({{std::move(entry)}, error});
}

Status Sequencer::CheckComplete(const Pending& pending) const {
  std::vector<const NamedRequest*> requests(options_.ranks, nullptr);
  std::vector<int> joined;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (!pending.made[rank]) {
      joined.push_back(rank);
      continue;
    }
    requests[rank] = &pending.requests[rank];
    if (!requests[rank]->refusal.ok()) return requests[rank]->refusal.WithPrefix(StrCat("rank ", rank, ": "));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckAgreement(requests));
  const NamedRequest& request = **std::find_if(requests.begin(), requests.end(), [](auto* r) { return r != nullptr; });
  if (joined.empty() || (request.kind == NamedKind::kAllReduce && request.reduction != NamedReduction::kAdasum)) {
    return OkStatus();
  }
  return FailedPrecondition(StrCat(NamedKindName(request.kind), " '", request.name, "': ", RankText(joined),
                                   joined.size() > 1 ? " have" : " has",
                                   " joined; only allreduce is allowed until all ranks have joined"));
}

Status Sequencer::Join(int rank, NamedRequest request) {
  if (joins_[rank] != kNoTicket || request.ticket == kNoTicket) {
    return DataLoss(StrCat("rank ", rank, " joined again before all ranks have joined"));
  }
  joins_[rank] = request.ticket;
  last_joined_ = rank;
  for (auto& [name, pending] : pending_) {
    if (pending.complete || !IsComplete(pending)) continue;
    pending.complete = true;
    complete_.push_back(name);
  }
  for (const auto& [name, group] : groups_) touched_groups_.push_back(name);
  if (std::find(joins_.begin(), joins_.end(), kNoTicket) != joins_.end()) return OkStatus();
  // Everything that was requested comes before the end of the joins; nothing is left over.
  CollectComplete();
  failed_groups_.clear();
  failed_numbers_.clear();
  NamedBatch batch;
  request.root = last_joined_;
  batch.entries.push_back({std::move(request), joins_, std::vector<int64_t>(options_.ranks, 0), {}});
  ready_.push_back(std::move(batch));
  joins_.assign(options_.ranks, kNoTicket);
  return OkStatus();
}

NamedBatch::Entry Sequencer::EntryOf(const Pending& pending) const {
  NamedBatch::Entry entry;
  entry.tickets.assign(options_.ranks, kNoTicket);
  entry.rows.assign(options_.ranks, 0);
  for (int rank = options_.ranks - 1; rank >= 0; --rank) {
    if (!pending.made[rank]) continue;
    const NamedRequest& request = pending.requests[rank];
    entry.request = request;
    entry.tickets[rank] = request.ticket;
    entry.rows[rank] = request.rows();
  }
  if (entry.request.kind == NamedKind::kAllToAll) {
    entry.splits.assign(options_.ranks, std::vector<int64_t>(options_.ranks, 0));
    for (int rank = 0; rank < options_.ranks; ++rank) {
      const std::vector<int64_t>& splits = pending.requests[rank].splits;
      std::copy_n(splits.begin(), std::min(splits.size(), entry.splits[rank].size()), entry.splits[rank].begin());
    }
  }
  entry.request.ticket = 0;
  entry.last_rank = pending.last_rank;
  return entry;
}

}  // namespace lockstep
