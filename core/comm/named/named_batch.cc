#include "core/comm/named/named_batch.h"

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

// Entries that are exchanged need possible sizes and must fit into one exchange. Failed entries may be anything, as the
// ranks may have asked for anything.
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

bool CanTravelTogether(const NamedRequest& a, const NamedRequest& b) {
  if (a.kind != b.kind || a.on_device != b.on_device) return false;
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

int64_t TensorBytes(const NamedBatch::Entry& entry) {
  if (!HasData(entry.request.kind)) return 0;
  int64_t rows = 0;
  for (const int64_t of_rank : entry.rows) rows = std::max(rows, of_rank);
  return rows * entry.request.RowElements() * DTypeSize(entry.request.dtype);
}

int64_t WireBytes(const NamedBatch::Entry& entry) {
  size_t numbers = entry.tickets.size() + entry.rows.size();
  for (const auto& from : entry.splits) numbers += from.size();
  return entry.request.WireBytes() + static_cast<int64_t>(numbers * sizeof(uint64_t));
}

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
    writer.Number(static_cast<uint32_t>(entry.last_rank));
  }
}

NamedBatch ReadNamedBatch(ByteReader& reader, int ranks) {
  NamedBatch batch;
  batch.error = ReadStatus(reader);
  const auto count = reader.Number<uint32_t>();
  const auto read_rows = [&] {
    const auto rows = static_cast<int64_t>(reader.Number<uint64_t>());
    if (rows < 0) reader.MarkDamaged();
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
    const auto last_rank = reader.Number<uint32_t>();
    if (last_rank >= static_cast<uint32_t>(ranks)) reader.MarkDamaged();
    entry.last_rank = static_cast<int>(last_rank);
    if (batch.error.ok() && reader.good() && !CanBeDone(batch, entry)) reader.MarkDamaged();
    batch.entries.push_back(std::move(entry));
  }
  return batch;
}

bool IsAnswerTo(const NamedBatch::Entry& entry, const NamedRequest& request, int rank) {
  // A request that its rank refuses fails on all ranks.
  if (!request.refusal.ok()) return false;
  if (request.kind == NamedKind::kJoin) return entry.request.kind == NamedKind::kJoin;
  if (entry.request.name != request.name || !CheckAgreement({&entry.request, &request}).ok()) return false;
  if (entry.request.kind != NamedKind::kBarrier && entry.rows[rank] != request.rows()) return false;
  return entry.request.kind != NamedKind::kAllToAll || entry.splits[rank] == request.splits;
}

}  // namespace lockstep
