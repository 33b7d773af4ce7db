#include "core/comm/job/observed_communicator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/telemetry/clock.h"

namespace lockstep {
namespace {

int64_t Sum(std::span<const int64_t> counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

// Learns from a call of `allocate` how much comes from the others.
struct Receiver {
  const Allocate& allocate;
  int rank;
  int64_t item_bytes;
  int64_t bytes = 0;
};

// Captures one pointer, which std::function holds without an allocation.
Allocate Counting(Receiver& receiver) {
  return [&receiver](std::span<const int64_t> counts) {
    receiver.bytes = (Sum(counts) - counts[receiver.rank]) * receiver.item_bytes;
    return receiver.allocate(counts);
  };
}

}  // namespace

ObservedCommunicator::ObservedCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<Telemetry> telemetry,
                                           std::string_view lane)
    : inner_(std::move(inner)),
      telemetry_(std::move(telemetry)),
      rank_(inner_->rank()),
      size_(inner_->size()),
      counters_(telemetry_->OpenLane(lane, rank_, size_)),
      lane_(telemetry_->LaneNumber(*counters_)),
      exchanges_(size_ > 1) {
  inner_->CountWaits(counters_.get());
}

ObservedCommunicator::~ObservedCommunicator() { telemetry_->CloseLane(*counters_); }

Status ObservedCommunicator::AllReduce(std::string_view name, ReduceOp op, DType dtype, int64_t count, const void* in,
                                       void* out) {
  const int64_t bytes = count * DTypeSize(dtype);
  return Run(CallKind::kAllReduce, name, bytes, bytes,
             [&] { return inner_->AllReduce(name, op, dtype, count, in, out); });
}

Status ObservedCommunicator::ReduceScatter(std::string_view name, ReduceOp op, DType dtype,
                                           std::span<const int64_t> counts, const void* in, void* out) {
  const int64_t own = counts.size() == static_cast<size_t>(size_) ? counts[rank_] * DTypeSize(dtype) : 0;
  return Run(CallKind::kReduceScatter, name, Sum(counts) * DTypeSize(dtype), own,
             [&] { return inner_->ReduceScatter(name, op, dtype, counts, in, out); });
}

Status ObservedCommunicator::Broadcast(std::string_view name, int root, int64_t bytes, void* data) {
  return Run(CallKind::kBroadcast, name, rank_ == root ? bytes : 0, rank_ == root ? 0 : bytes,
             [&] { return inner_->Broadcast(name, root, bytes, data); });
}

Status ObservedCommunicator::AllGatherV(std::string_view name, Item item, int64_t count, const void* in,
                                        const Allocate& allocate) {
  Receiver receiver = {allocate, rank_, item.bytes()};
  return Run(CallKind::kAllGatherV, name, count * item.bytes(), receiver.bytes,
             [&] { return inner_->AllGatherV(name, item, count, in, Counting(receiver)); });
}

Status ObservedCommunicator::AllToAllV(std::string_view name, Item item, std::span<const int64_t> send_counts,
                                       const void* in, const Allocate& allocate) {
  Receiver receiver = {allocate, rank_, item.bytes()};
  const int64_t own = send_counts.size() == static_cast<size_t>(size_) ? send_counts[rank_] : 0;
  return Run(CallKind::kAllToAllV, name, (Sum(send_counts) - own) * item.bytes(), receiver.bytes,
             [&] { return inner_->AllToAllV(name, item, send_counts, in, Counting(receiver)); });
}

Status ObservedCommunicator::Barrier(std::string_view name) {
  return Run(CallKind::kBarrier, name, 0, 0, [&] { return inner_->Barrier(name); });
}

Status ObservedCommunicator::Decline(std::string_view name, const Status& why) {
  return Run(CallKind::kDecline, name, 0, 0, [&] { return inner_->Decline(name, why); });
}

// The waits are those since the last recorded call. Nothing records before the timeline begins, which is before the
// first call of any lane that it has.
void ObservedCommunicator::Record(CallKind kind, std::string_view name, int64_t begin_ns, int64_t sent,
                                  int64_t received) {
  const LaneCounters::Waits waits = counters_->TakeWaits();
  TraceEvent event;
  event.kind = TraceEvent::Kind::kCollective;
  event.lane = lane_;
  event.what = CallKindName(kind).data();  // a literal
  event.late = waits.ns == 0 ? TraceEvent::kNobody : waits.late.value_or(TraceEvent::kUnknown);
  // The named lane counts a wait before the exchange begins.
  event.begin_ns = waits.ns > 0 ? std::min(begin_ns, waits.begin_ns) : begin_ns;
  event.end_ns = SteadyNs();
  event.number = counters_->collectives();
  event.wait_begin_ns = waits.begin_ns;
  event.wait_ns = waits.ns;
  event.first = sent;
  event.second = received;
  event.SetName(name);
  telemetry_->Record(event);
}

}  // namespace lockstep
