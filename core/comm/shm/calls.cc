#include "core/comm/shm/calls.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"

// An announcement is 24 bytes in the flag's cache line: the fingerprint of the call and a payload of 16. A comparison
// reads one line for each peer, which the wait has already loaded into the cache. The record of the whole call lies
// elsewhere and is read only for errors (and by AllToAllV, for its counts).
//
// Both are plain memory, written before the announcement, whose store makes them visible. They may be overwritten two
// calls later. A rank that has begun call n + 1 has ended call n, and this rank begins n + 2 only after it has seen all
// begin n + 1. If n + 1 was broken off instead, nothing is written any more.

namespace lockstep::shm {
namespace {

// Returns the call of a record.
Call CallOf(const CallRecord& record, int size) {
  const bool has_counts = record.kind == CallKind::kReduceScatter;
  return {.kind = record.kind,
          .name = record.name,
          .dtype = record.dtype,
          .op = record.op,
          .root = record.root,
          .width = record.width,
          .count = record.count,
          .counts = {record.counts, has_counts ? static_cast<size_t>(size) : 0}};
}

// Copies as much of `text` as fits, and appends a zero.
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
  return Exchange(call, FingerprintOf(call), payload, payload_bytes);
}

// The reason goes into the record of the call that Exchange begins; Exchange fills in the rest.
Status Calls::Decline(std::string_view name, const Status& why, bool verbatim) {
  LOCKSTEP_RETURN_IF_ERROR(CheckUsable());
  CallRecord& mine = segment_->block(rank_).calls[next_parity()];
  mine.why_code = why.code();
  CopyText(verbatim ? why.message() : StrCat("rank ", waiter_.NameOf(rank_), ": ", why.message()), mine.why);
  return Exchange({.kind = CallKind::kDecline, .name = name}, kDeclinedCall, nullptr, 0);
}

Status Calls::Exchange(const Call& call, uint64_t fingerprint, const void* payload, int64_t payload_bytes) {
  LOCKSTEP_RETURN_IF_ERROR(CheckUsable());
  // From here on this rank has begun the call. A wait that fails below breaks the rank, so no call begins after one
  // that did not end.
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
  LOCKSTEP_RETURN_IF_ERROR(waiter_.AwaitArrivals(waiter_.announced()));

  bool agreed = fingerprint != kDeclinedCall;
  for (int rank = 0; rank < size_; ++rank) agreed &= this->announcement(rank).fingerprint == fingerprint;
  return agreed ? OkStatus() : Disagreement();
}

// All ranks read the same announcements and records, so the text is the same on all, except for the rank at its start.
// A declined call has priority over a disagreement, because a declining rank does not know the others' calls.
Status Calls::Disagreement() const {
  std::vector<int> ranks;
  std::vector<uint64_t> fingerprints;
  for (int rank = 0; rank < size_; ++rank) {
    ranks.push_back(waiter_.NameOf(rank));
    fingerprints.push_back(announcement(rank).fingerprint);
    if (fingerprints.back() == kDeclinedCall) return Status(record(rank).why_code, record(rank).why);
  }
  return CallsDiffer(waiter_.NameOf(rank_), number_, ranks, fingerprints,
                     [&](int rank) { return DescribeCall(CallOf(record(rank), size_)); });
}

}  // namespace lockstep::shm
