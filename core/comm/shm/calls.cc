#include "core/comm/shm/calls.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"

// An announcement is 24 bytes in the flag's line: the fingerprint of the call and a payload of 16. Comparing costs the
// reading of one line for each peer, which the wait has brought into the cache already. The record with the whole call
// lies elsewhere and is read when something is wrong (and by AllToAllV, for its counts).
//
// Both are written as plain memory before the announcement, whose store makes them visible. They may be overwritten two
// calls later: to have begun call n + 1 a rank has ended call n, and this rank begins n + 2 after it has seen all begin
// n + 1. Where n + 1 broke off instead, nothing is written any more.

namespace lockstep::shm {
namespace {

// The fingerprint of a refusal. Those of calls are odd, so none of them is it by chance.
constexpr uint64_t kDeclined = 0;

// One round of a multiply-and-fold hash: both halves of the 128-bit product of odd-looking constants. Against accidents
// and not against attackers: the ranks trust each other.
uint64_t Mix(uint64_t hash, uint64_t value) {
  const auto product = static_cast<unsigned __int128>(hash ^ value) * 0x9e3779b97f4a7c15u;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64) ^ 0xd1b54a32d192ed03u;
}

// Of everything that has to be the same: kind, type, reduction, root, width, name and, where they have to agree,
// counts. The name is taken in words of 8 bytes; its length stands before it, as the last word is filled up with zeros.
// Differing calls have the same one by a chance of about 2^-63.
uint64_t Fingerprint(const Call& call) {
  uint64_t hash =
      Mix(0x2545f4914f6cdd1d, static_cast<uint64_t>(call.kind) | static_cast<uint64_t>(call.dtype) << 8 |
                                  static_cast<uint64_t>(call.op) << 16 | static_cast<uint64_t>(call.root) << 24);
  hash = Mix(hash, static_cast<uint64_t>(call.width));
  if (call.count_agrees) {
    hash = Mix(hash, static_cast<uint64_t>(call.count));
    for (int64_t count : call.counts) hash = Mix(hash, static_cast<uint64_t>(count));
  }
  std::string_view name = call.name;
  hash = Mix(hash, name.size());
  for (; name.size() >= 8; name.remove_prefix(8)) {
    uint64_t piece;
    std::memcpy(&piece, name.data(), sizeof(piece));
    hash = Mix(hash, piece);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, name.data(), name.size());
  return Mix(hash, rest) | 1;
}

// "allreduce 'grad' (sum of 10 x float32)": how a message shows what a rank called, with all that is compared.
std::string Describe(const CallRecord& call, int size) {
  const std::string_view dtype = DTypeName(call.dtype);
  const std::string title = StrCat(CallKindName(call.kind), " '", call.name, "'");
  const std::string item = call.width == 1 ? std::string(dtype) : StrCat(dtype, "[", call.width, "]");
  switch (call.kind) {
    case CallKind::kAllReduce: return StrCat(title, " (", ReduceOpName(call.op), " of ", call.count, " x ", item, ")");
    case CallKind::kReduceScatter: {
      std::string text = StrCat(title, " (", ReduceOpName(call.op), " of ", item, ", counts");
      for (int r = 0; r < size; ++r) text += StrCat(" ", call.counts[r]);
      return text + ")";
    }
    case CallKind::kBroadcast: return StrCat(title, " (", call.count, " bytes of rank ", call.root, ")");
    case CallKind::kAllGatherV:
    case CallKind::kAllToAllV: return StrCat(title, " (items of ", item, ")");
    default: return title;
  }
}

// Copies as much of `text` as fits, and a zero behind it.
template <size_t N>
void CopyText(std::string_view text, char (&to)[N]) {
  const size_t size = std::min(text.size(), N - 1);
  std::memcpy(to, text.data(), size);
  to[size] = '\0';
}

}  // namespace

Calls::Calls(std::shared_ptr<Segment> segment, int rank, Waiter& waiter)
    : segment_(std::move(segment)), rank_(rank), size_(segment_->layout().size), waiter_(waiter) {}

Status Calls::Begin(const Call& call, const void* payload, int64_t payload_bytes) {
  return Exchange(call, Fingerprint(call), payload, payload_bytes);
}

// The reason goes into the record of the call that Exchange begins; it fills in the rest.
Status Calls::Decline(std::string_view name, const Status& why) {
  LOCKSTEP_RETURN_IF_ERROR(CheckUsable());
  CallRecord& mine = segment_->block(rank_).calls[next_parity()];
  mine.why_code = why.code();
  CopyText(why.message(), mine.why);
  return Exchange({.kind = CallKind::kDecline, .name = name}, kDeclined, nullptr, 0);
}

Status Calls::Exchange(const Call& call, uint64_t fingerprint, const void* payload, int64_t payload_bytes) {
  LOCKSTEP_RETURN_IF_ERROR(CheckUsable());
  // From here on this rank has begun the call. A wait that fails below breaks it, so no next call begins after one that
  // did not end.
  ++number_;
  RankBlock& block = segment_->block(rank_);
  CallRecord& mine = block.calls[number_ & 1];
  mine.kind = call.kind;
  mine.dtype = call.dtype;
  mine.op = call.op;
  mine.root = call.root;
  mine.number = number_;
  mine.width = call.width;
  mine.count = call.count;
  std::copy(call.counts.begin(), call.counts.end(), mine.counts);
  CopyText(call.name, mine.name);
  Announcement& announcement = block.flag.announcements[number_ & 1];
  announcement.fingerprint = fingerprint;
  if (payload_bytes > 0) std::memcpy(announcement.payload, payload, static_cast<size_t>(payload_bytes));

  waiter_.SetOperation(call.kind, call.name);
  waiter_.Announce();
  LOCKSTEP_RETURN_IF_ERROR(waiter_.WaitForAll(waiter_.announced()));

  bool agreed = fingerprint != kDeclined;
  for (int rank = 0; rank < size_; ++rank) agreed &= this->announcement(rank).fingerprint == fingerprint;
  return agreed ? OkStatus() : Disagreement();
}

// All ranks read the same announcements and records, so the text is the same on all but for the rank at its start. A
// refusal comes before a disagreement: whoever declines does not know what the others call.
Status Calls::Disagreement() const {
  for (int rank = 0; rank < size_; ++rank) {
    if (announcement(rank).fingerprint != kDeclined) continue;
    return Status(record(rank).why_code, StrCat("rank ", rank, ": ", record(rank).why));
  }
  // The ranks that called the same are named together.
  std::vector<std::pair<uint64_t, std::vector<int>>> groups;
  for (int rank = 0; rank < size_; ++rank) {
    const uint64_t fingerprint = announcement(rank).fingerprint;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == fingerprint; });
    if (group == groups.end()) group = groups.insert(group, {fingerprint, {}});
    group->second.push_back(rank);
  }
  std::string text = StrCat("rank ", rank_, ": the ranks disagree about call ", number_, ":");
  for (const auto& [fingerprint, ranks] : groups) {
    text += StrCat(&ranks == &groups.front().second ? " " : "; ", ranks.size() == 1 ? "rank " : "ranks ",
                   JoinWithAnd(ranks), " called ", Describe(record(ranks.front()), size_));
  }
  text += "; every rank has to make the same calls, so none may end its data or its steps before the others";
  return FailedPrecondition(std::move(text));
}

}  // namespace lockstep::shm
