#include "core/comm/collective/call_observer.h"

#include <algorithm>
#include <utility>

namespace lockstep {

CallObserver::CallObserver(std::shared_ptr<Telemetry> telemetry, std::string_view lane, int rank, int size)
    : telemetry_(std::move(telemetry)),
      counters_(telemetry_->OpenLane(lane, rank, size)),
      lane_(telemetry_->LaneNumber(*counters_)),
      exchanges_(size > 1) {}

CallObserver::~CallObserver() { telemetry_->CloseLane(*counters_); }

// The waits are those since the last recorded call. Nothing records before the timeline begins, which is before the
// first call of any lane that it has.
void CallObserver::Record(CallKind kind, std::string_view name, int64_t begin_ns, int64_t sent, int64_t received) {
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
