#include "tf/lookup/lookup_counts.h"

#include "core/capi/capi.h"
#include "core/telemetry/clock.h"

namespace lockstep {
namespace {

void RecordOf(TraceEvent::Kind kind, const TableCounters& table, int64_t first, int64_t second, int64_t begin_ns) {
  Telemetry& telemetry = *ProcessTelemetry();
  if (!telemetry.recording()) return;
  TraceEvent event;
  event.kind = kind;
  event.begin_ns = begin_ns;
  event.end_ns = SteadyNs();
  event.first = first;
  event.second = second;
  event.SetName(table.name());
  telemetry.Record(event);
}

}  // namespace

void CountLookup(TableCounters& table, int64_t ids, int64_t distinct_ids, int64_t begin_ns) {
  table.AddLookup(ids, distinct_ids);
  RecordOf(TraceEvent::Kind::kLookup, table, ids, distinct_ids, begin_ns);
}

void CountKeys(TableCounters& table, int64_t keys, int64_t inserted_keys, int64_t begin_ns) {
  table.AddInserted(inserted_keys);
  RecordOf(TraceEvent::Kind::kResolve, table, keys, inserted_keys, begin_ns);
}

}  // namespace lockstep
