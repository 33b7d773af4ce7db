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

// The start of every collective: each rank writes down what it calls, announces it, and waits until all have. Then each
// compares a 64-bit fingerprint of its own call with everyone's, and so do all see together that they agree, disagree,
// or that somebody declined. From there on the calls of this number may read each other's contributions.
//
//   LOCKSTEP_RETURN_IF_ERROR(calls.CheckUsable());
//   if (small) CopyStreaming(slot of next_parity(), in, bytes);        // before Begin
//   LOCKSTEP_RETURN_IF_ERROR(calls.Begin(call, &payload, sizeof(payload)));
//   for (int rank = 0; rank < size; ++rank) Use(calls.announcement(rank), calls.slot(rank));
//
// What announcement(), record() and slot() show is as the ranks left it when they announced, and stays until this rank
// begins its next call: the peers write the other parity's meanwhile.
//
// Disagreement costs nothing more than an agreement: one announcement and one wait, on all ranks, after which the ranks
// are in step again, whatever they wanted to call. Thread-compatible.
class Calls {
 public:
  Calls(std::shared_ptr<Segment> segment, int rank, Waiter& waiter);

  // OK while the rank is not broken, and else its first error. What belongs to the next call may be filled only after
  // this was OK: where the call before has broken off, peers may still read what was filled for the one before that.
  Status CheckUsable() const {
    if (waiter_.broken()) [[unlikely]]
      return waiter_.BrokenStatus();
    return OkStatus();
  }

  // The parity of the call that Begin will start: which slot may be filled for it.
  int next_parity() const { return static_cast<int>((number_ + 1) & 1); }

  // `payload` (at most kInlineBytes) is what the peers read from announcement(); it may be null where there is none.
  // All ranks get the same outcome, except where waiting fails: OK; the reason of the lowest rank that declined, with
  // its number; or FAILED_PRECONDITION that says who called what. A broken rank returns its first error without an
  // exchange.
  Status Begin(const Call& call, const void* payload, int64_t payload_bytes);

  // Takes part with a refusal; the outcome is that refusal or that of a lower rank, and never OK. `why` is not OK; its
  // text is cut off where it is longer than a record has room for. `verbatim`: it says already whose it is.
  Status Decline(std::string_view name, const Status& why, bool verbatim);

  // What ranks brought to the call that was begun last.
  const Announcement& announcement(int rank) const { return segment_->block(rank).flag.announcements[number_ & 1]; }
  const CallRecord& record(int rank) const { return segment_->block(rank).calls[number_ & 1]; }
  // The contribution of a rank that filled its slot.
  const char* slot(int rank) const { return segment_->At(segment_->layout().Slot(rank, number_ & 1)); }

 private:
  // What both have in common: writes the record and the announcement, announces, waits, compares.
  Status Exchange(const Call& call, uint64_t fingerprint, const void* payload, int64_t payload_bytes);
  // The outcome where fingerprints differ or are those of a refusal. Reads all records.
  Status Disagreement() const;

  const std::shared_ptr<Segment> segment_;
  const int rank_;
  const int size_;
  Waiter& waiter_;
  // Of the call that was begun last, from 1 on; the same on all ranks, as each begins all calls. Its parity chooses
  // what belongs to the call.
  int64_t number_ = 0;
};

}  // namespace lockstep::shm
