#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"

// What concerns a whole table and not some of its ids. Every call goes through the table in steps of a bounded number
// of bytes per rank, so that it needs no second copy of what it moves. Rows are any bytes: [L, row_bytes] on each rank,
// L as LocalRows says; callers check that before they call.
//
//   RelayToContiguous   before a checkpoint is written    moves each row once
//   RelayToModulo       after one was read                moves each row once
//   GatherTable         a read that is no lookup          every rank receives the whole table
//   ReduceTable         its gradient                      every rank sends its gradient of the whole table
//
// All are collectives: every rank calls with the same table, name and step_bytes, and gets the communicator's errors. A
// call that fails between two steps leaves `out` half written. `in` and `out` must not overlap. One call at a time, on
// the thread that serves the communicator.
namespace lockstep {

// The size of a table, as all ranks have it. No type: moving needs none.
struct TableSize {
  int64_t rows;       // of the whole table
  int64_t row_bytes;  // of one row
};

// Bytes that a rank exchanges in one step. Smaller steps need less memory, larger ones wait for the peers less often.
inline constexpr int64_t kTableStepBytes = int64_t{8} << 20;

// Moves rows between the two placements of placement.h: `in` and `out` are [L, row_bytes] each. A step's rows exist a
// second time while they are packed, and a third time when they have arrived.
Status RelayToContiguous(Communicator& communicator, std::string_view name, TableSize table, const void* in, void* out,
                         int64_t step_bytes = kTableStepBytes);
Status RelayToModulo(Communicator& communicator, std::string_view name, TableSize table, const void* in, void* out,
                     int64_t step_bytes = kTableStepBytes);

// Gives every rank the whole table, [rows, row_bytes] by id, out of the modulo placement. `in` is [L, row_bytes]. The
// memory for `out` is the caller's, and is what this costs: R whole tables in the job.
Status GatherTable(Communicator& communicator, std::string_view name, TableSize table, const void* in, void* out,
                   int64_t step_bytes = kTableStepBytes);

// The gradient of GatherTable: each rank's gradient of the whole table, [rows, width], is summed over the ranks in rank
// order, and a rank gets the sums of its own rows, [L, width]. `dtype` is any type that ReduceScatter sums.
Status ReduceTable(Communicator& communicator, std::string_view name, DType dtype, int64_t rows, int64_t width,
                   const void* in, void* out, int64_t step_bytes = kTableStepBytes);

}  // namespace lockstep
