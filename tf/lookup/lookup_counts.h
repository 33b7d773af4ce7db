#pragma once

#include <cstdint>

#include "core/telemetry/table_counters.h"

namespace lockstep {

// Counts a lookup of this rank in a table (core/telemetry/table_counters.h), and records it in the timeline if one
// runs. begin_ns: when it began, by SteadyNs.
void CountLookup(TableCounters& table, int64_t ids, int64_t distinct_ids, int64_t begin_ns);

// Counts the keys that a dynamic table was asked for in training, and how many of them it took in. Records it too.
void CountKeys(TableCounters& table, int64_t keys, int64_t inserted_keys, int64_t begin_ns);

}  // namespace lockstep
