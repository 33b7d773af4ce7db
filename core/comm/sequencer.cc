#include "core/comm/sequencer.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "core/base/strings.h"

namespace lockstep {
namespace {

constexpr uint64_t kNoTicket = NamedBatch::kNoTicket;

// What the largest part of an exchange holds, roughly: for the limit of a batch.
int64_t BytesOf(const NamedBatch::Entry& entry) {
  if (!HasData(entry.request.kind)) return 0;
  int64_t rows = 0;
  for (const int64_t of_rank : entry.rows) rows = std::max(rows, of_rank);
  return rows * entry.request.RowElements() * DTypeSize(entry.request.dtype);
}

// Whether two requests can be done by one exchange. What each kind does with several tensors is in named_exchange.cc.
bool CanTravelTogether(const NamedRequest& a, const NamedRequest& b) {
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case NamedKind::kAllReduce:
    case NamedKind::kReduceScatter: return a.dtype == b.dtype && a.reduction == b.reduction;
    case NamedKind::kAllGather:
    case NamedKind::kAllToAll: return true;
    case NamedKind::kBroadcast: return a.root == b.root;
    case NamedKind::kBarrier:
    case NamedKind::kJoin: return false;
  }
  return false;
}

// What is exchanged must have sizes that can be, and travel together. Of what failed the ranks may have asked for
// anything.
bool CanBeDone(const NamedBatch& batch, const NamedBatch::Entry& entry) {
  const auto possible = [&](int64_t rows) { return HasPossibleSize(entry.request, rows); };
  return std::all_of(entry.rows.begin(), entry.rows.end(), possible) &&
         std::all_of(entry.splits.begin(), entry.splits.end(),
                     [&](const auto& from) { return std::all_of(from.begin(), from.end(), possible); }) &&
         (batch.entries.empty() || CanTravelTogether(batch.entries.front().request, entry.request));
}

}  // namespace

bool NamedBatch::Entry::operator==(const Entry& other) const {
  return request == other.request && tickets == other.tickets && rows == other.rows && splits == other.splits;
}

bool NamedBatch::operator==(const NamedBatch& other) const { return entries == other.entries && error == other.error; }

void Write(const NamedBatch& batch, ByteWriter& writer) {
  WriteStatus(batch.error, writer);
  writer.Number(static_cast<uint32_t>(batch.entries.size()));
  for (const NamedBatch::Entry& entry : batch.entries) {
    Write(entry.request, writer);
    for (const uint64_t ticket : entry.tickets) writer.Number(ticket);
    for (const int64_t rows : entry.rows) writer.Number(static_cast<uint64_t>(rows));
    for (const auto& from : entry.splits) {
      for (const int64_t rows : from) writer.Number(static_cast<uint64_t>(rows));
    }
  }
}

NamedBatch ReadNamedBatch(ByteReader& reader, int ranks) {
  NamedBatch batch;
  batch.error = ReadStatus(reader);
  const auto count = reader.Number<uint32_t>();
  const auto read_rows = [&] {
    const auto rows = static_cast<int64_t>(reader.Number<uint64_t>());
    if (rows < 0) reader.Spoil();
    return rows;
  };
  for (uint32_t i = 0; i < count && reader.good(); ++i) {
    NamedBatch::Entry entry;
    entry.request = ReadNamedRequest(reader);
    for (int r = 0; r < ranks; ++r) entry.tickets.push_back(reader.Number<uint64_t>());
    for (int r = 0; r < ranks; ++r) entry.rows.push_back(read_rows());
    if (entry.request.kind == NamedKind::kAllToAll) {
      entry.splits.assign(ranks, std::vector<int64_t>(ranks));
      for (auto& from : entry.splits) {
        for (int64_t& rows : from) rows = read_rows();
      }
    }
    if (batch.error.ok() && reader.good() && !CanBeDone(batch, entry)) reader.Spoil();
    batch.entries.push_back(std::move(entry));
  }
  return batch;
}

bool IsAnswerTo(const NamedBatch::Entry& entry, const NamedRequest& request, int rank) {
  if (request.kind == NamedKind::kJoin) return entry.request.kind == NamedKind::kJoin;
  if (entry.request.name != request.name || !CheckAgreement({&entry.request, &request}).ok()) return false;
  if (entry.request.kind != NamedKind::kBarrier && entry.rows[rank] != request.rows()) return false;
  return entry.request.kind != NamedKind::kAllToAll || entry.splits[rank] == request.splits;
}

Sequencer::Sequencer(const SequencerOptions& options) : options_(options), joins_(options.ranks, kNoTicket) {}

Status Sequencer::Add(int rank, NamedRequest request, double now) {
  if (request.kind == NamedKind::kJoin) return Join(rank, std::move(request));
  const std::string name = request.name;
  auto [found, is_new] = pending_.try_emplace(name);
  Pending& pending = found->second;
  if (!is_new && pending.made[rank]) {
    return DataLoss(StrCat("rank ", rank, " asked for ", Describe(request), " again, before it was answered"));
  }
  if (is_new) {
    pending.requests.resize(options_.ranks);
    pending.made.assign(options_.ranks, false);
    pending.since = now;
  }
  pending.requests[rank] = std::move(request);
  pending.made[rank] = true;
  if (!pending.complete && IsComplete(pending)) Complete(name, Judge(pending));
  return OkStatus();
}

std::vector<NamedBatch> Sequencer::Take() {
  std::vector<NamedBatch> batches;
  std::vector<int64_t> bytes;
  for (NamedBatch& ready : std::exchange(ready_, {})) {
    // Behind the first batch that takes all of its entries, or in one of its own.
    size_t at = 0;
    const auto fits = [&](const NamedBatch::Entry& entry) { return Fits(batches[at], bytes[at], entry); };
    while (at < batches.size() && !(ready.error.ok() && std::all_of(ready.entries.begin(), ready.entries.end(), fits)))
      ++at;
    int64_t size = 0;
    // What failed may have any size, as ranks may differ in it; nothing joins it. The sum of a group has an end.
    for (const NamedBatch::Entry& entry : ready.entries) {
      if (ready.error.ok()) size = std::min(size + BytesOf(entry), kMostTensorBytes);
    }
    if (at == batches.size()) {
      batches.push_back(std::move(ready));
      bytes.push_back(size);
    } else {
      std::move(ready.entries.begin(), ready.entries.end(), std::back_inserter(batches[at].entries));
      bytes[at] += size;
    }
  }
  return batches;
}

bool Sequencer::Fits(const NamedBatch& batch, int64_t batch_bytes, const NamedBatch::Entry& entry) const {
  return batch.error.ok() && CanTravelTogether(batch.entries.front().request, entry.request) &&
         batch_bytes + BytesOf(entry) <= options_.fusion_bytes;
}

std::vector<Sequencer::Wait> Sequencer::Waiting() const {
  std::vector<Wait> waits;
  for (const auto& [name, pending] : pending_) {
    if (pending.complete) continue;
    Wait wait = {name, {}, pending.since, {}};
    for (int rank = 0; rank < options_.ranks; ++rank) {
      if (pending.made[rank]) {
        wait.kind = pending.requests[rank].kind;
      } else if (joins_[rank] == kNoTicket) {
        wait.missing.push_back(rank);
      }
    }
    waits.push_back(std::move(wait));
  }
  return waits;
}

double Sequencer::WaitingSince() const {
  double since = std::numeric_limits<double>::infinity();
  for (const auto& [name, pending] : pending_) {
    if (!pending.complete) since = std::min(since, pending.since);
  }
  return since;
}

void Sequencer::Fail(const std::string& name, const Status& why) {
  const auto found = pending_.find(name);
  if (found != pending_.end() && !found->second.complete) Complete(name, why);
}

bool Sequencer::IsComplete(const Pending& pending) const {
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (!pending.made[rank] && joins_[rank] == kNoTicket) return false;
  }
  return true;
}

void Sequencer::Complete(const std::string& name, const Status& status) {
  Pending& pending = pending_.at(name);
  pending.complete = true;
  const auto made = std::find(pending.made.begin(), pending.made.end(), true) - pending.made.begin();
  const NamedRequest& request = pending.requests[made];
  if (request.group.empty()) return Ready({name}, status);
  Group& group = groups_[request.group];
  group.names.push_back(name);
  if (group.error.ok()) group.error = status;
  if (group.names.size() < request.group_size) return;
  const Group done = std::move(group);
  groups_.erase(request.group);
  Ready(done.names, done.error);
}

void Sequencer::Ready(const std::vector<std::string>& names, const Status& error) {
  NamedBatch batch;
  batch.error = error;
  for (const std::string& name : names) {
    NamedBatch::Entry entry = EntryOf(pending_.at(name));
    pending_.erase(name);
    // A group may hold what can't be done at once: then it is done one behind the other.
    if (error.ok() && !batch.entries.empty() && !CanTravelTogether(batch.entries.front().request, entry.request)) {
      ready_.push_back(std::exchange(batch, {}));
    }
    batch.entries.push_back(std::move(entry));
  }
  ready_.push_back(std::move(batch));
}

Status Sequencer::Judge(const Pending& pending) const {
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
  return FailedPrecondition(StrCat(NamedKindName(request.kind), " '", request.name,
                                   "': ", joined.size() > 1 ? "ranks " : "rank ", JoinWithAnd(joined),
                                   joined.size() > 1 ? " have" : " has",
                                   " joined, and can take part in sums and the like alone (allreduce)"));
}

Status Sequencer::Join(int rank, NamedRequest request) {
  if (joins_[rank] != kNoTicket || request.ticket == kNoTicket) {
    return DataLoss(StrCat("rank ", rank, " joined again, before all have"));
  }
  joins_[rank] = request.ticket;
  last_joined_ = rank;
  CompleteAll();
  if (std::find(joins_.begin(), joins_.end(), kNoTicket) != joins_.end()) return OkStatus();
  NamedBatch batch;
  request.root = last_joined_;
  batch.entries.push_back({std::move(request), joins_, std::vector<int64_t>(options_.ranks, 0), {}});
  ready_.push_back(std::move(batch));
  joins_.assign(options_.ranks, kNoTicket);
  return OkStatus();
}

void Sequencer::CompleteAll() {
  std::vector<std::string> names;
  for (const auto& [name, pending] : pending_) {
    if (!pending.complete && IsComplete(pending)) names.push_back(name);
  }
  for (const std::string& name : names) Complete(name, Judge(pending_.at(name)));
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
  return entry;
}

}  // namespace lockstep
