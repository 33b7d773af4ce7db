#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"

// What concerns a whole table and not some of its ids. Every call goes through the table in steps of a bounded number
// of bytes per rank, so that it needs no second copy of what it moves. Rows are any bytes: [L, row_bytes] on each rank,
// L as LocalRows says; callers check that before they call.
namespace lockstep {

struct TableRows {
  int64_t rows;       // of the whole table
  int64_t row_bytes;  // of one row
};

// Bytes that a rank exchanges in one step. Smaller steps need less memory, larger ones wait for the peers less often.
inline constexpr int64_t kTableStepBytes = int64_t{8} << 20;

// Moves rows between the two placements of placement.h: `in` and `out` are [L, row_bytes] each.
Status RelayToContiguous(Communicator& communicator, std::string_view name, TableRows table, const void* in, void* out,
                         int64_t step_bytes = kTableStepBytes);
Status RelayToModulo(Communicator& communicator, std::string_view name, TableRows table, const void* in, void* out,
                     int64_t step_bytes = kTableStepBytes);

// Gives every rank the whole table, [rows, row_bytes] by id, out of the modulo placement.
Status GatherTable(Communicator& communicator, std::string_view name, TableRows table, const void* in, void* out,
                   int64_t step_bytes = kTableStepBytes);

// The gradient of GatherTable: each rank's gradient of the whole table, [rows, width], is summed over the ranks in rank
// order, and a rank gets the sums of its own rows, [L, width].
Status ReduceTable(Communicator& communicator, std::string_view name, DType dtype, int64_t rows, int64_t width,
                   const void* in, void* out, int64_t step_bytes = kTableStepBytes);

}  // namespace lockstep
