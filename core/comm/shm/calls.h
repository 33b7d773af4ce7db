#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "core/base/status.h"
#include "core/comm/collective/call.h"
#include "core/comm/shm/layout.h"
#include "core/comm/shm/segment.h"
#include "core/comm/shm/waiter.h"

namespace lockstep::shm {

// The start of every collective. Each rank writes its call, announces it, and waits until all have done so. Then each
// compares the 64-bit fingerprints of all calls. So all ranks come to the same result: they agree, they disagree, or
// one declined. After this, the calls of this number may read each other's contributions.
// ```cpp
// LOCKSTEP_RETURN_IF_ERROR(calls.CheckUsable());
// if (small) CopyStreaming(slot of next_parity(), in, bytes);        // before Begin
// LOCKSTEP_RETURN_IF_ERROR(calls.Begin(call, &payload, sizeof(payload)));
// for (int rank = 0; rank < size; ++rank) Use(calls.announcement(rank), calls.slot(rank));
// ```
// The data of announcement(), record() and slot() is the state at the rank's announcement. It stays until this rank
// begins its next call: meanwhile the peers write the data of the other parity.
//
// A disagreement costs as much as an agreement: one announcement and one wait on all ranks. After it the ranks are in
// step again, regardless of their calls. Thread-compatible.
class Calls {
 public:
  Calls(std::shared_ptr<Segment> segment, int rank, Waiter& waiter);

  // Returns OK while the rank is not broken, and else its first error. The data of the next call may be written only
  // after this returned OK: if the call before was broken off, peers may still read the data of the one before that.
  Status CheckUsable() const {
    if (waiter_.broken()) [[unlikely]]
      return waiter_.BrokenStatus();
    return OkStatus();
  }

  // Returns the parity of the call that Begin will start: it selects the slot to fill.
  int next_parity() const { return static_cast<int>((number_ + 1) & 1); }

  // Begins a call. `payload` (at most kInlineBytes, or null) is what the peers read from announcement(). All ranks get
  // the same result, except where waiting fails: OK; the reason of the lowest rank that declined, with its number; or
  // FAILED_PRECONDITION with the calls of all ranks. A broken rank returns its first error without an exchange.
  Status Begin(const Call& call, const void* payload, int64_t payload_bytes);

  // Takes part by declining. Returns this reason or a lower rank's, never OK. `why` is not OK; a text that is too long
  // for a record is cut off. `verbatim`: it already names its rank.
  Status Decline(std::string_view name, const Status& why, bool verbatim);

  // Return a rank's data of the last call that was begun.
  const Announcement& announcement(int rank) const { return segment_->block(rank).flag.announcements[number_ & 1]; }
  const CallRecord& record(int rank) const { return segment_->block(rank).calls[number_ & 1]; }
  // Returns the contribution of a rank that filled its slot.
  const char* slot(int rank) const { return segment_->At(segment_->layout().Slot(rank, number_ & 1)); }

 private:
  // The common part of both: writes the record and the announcement, announces, waits, and compares.
  Status Exchange(const Call& call, uint64_t fingerprint, const void* payload, int64_t payload_bytes);
  // Returns the result if fingerprints differ or a rank declined. Reads all records.
  Status Disagreement() const;

  const std::shared_ptr<Segment> segment_;
  const int rank_;
  const int size_;
  Waiter& waiter_;
  // The number of the last call that was begun, from 1 on; equal on all ranks, because each begins all calls. Its
  // parity selects the call's data.
  int64_t number_ = 0;
};

}  // namespace lockstep::shm
