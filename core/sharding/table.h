#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/sharding/placement.h"

// Operations on a whole table instead of some ids. Every call walks through the table in steps of a bounded number of
// bytes per rank, so it needs no second copy of the table. Rows are any bytes: [L, row_bytes] on each rank, with L of
// LocalRows; callers check this first.
//
//   RelayToContiguous   before a checkpoint is written    moves each row once
//   RelayFromContiguous after one was read                moves each row once
//   GatherTable         a read without a lookup           sends the whole table to every rank
//   ReduceTable         its gradient                      every rank sends its gradient of the whole table
//
// All are collectives: every rank calls with the same table, name and step_bytes, and gets the communicator's errors. A
// call that fails between two steps leaves `out` half written. `in` and `out` must not overlap. One call at a time, on
// the communicator's thread.
namespace lockstep {

// A table whose rows are moved, equal on all ranks. The type does not matter for moving rows.
struct MovedTable {
  Placement placement;
  int64_t row_bytes;  // of one row
};

// The bytes that a rank exchanges in one step. Smaller steps need less memory; larger ones wait for the peers less
// often.
inline constexpr int64_t kTableStepBytes = int64_t{8} << 20;

// Takes rows of this rank's contiguous range, [count, row_bytes], which are valid during the call. Or fills such rows.
// They are called with consecutive parts of the range, in ascending order, and not if the range is empty.
using TakeRows = std::function<Status(RowRange rows, const char* data)>;
using FillRows = std::function<Status(RowRange rows, char* data)>;
// Writes some of this rank's local rows, [count, row_bytes], to `data`.
using ReadRows = std::function<void(RowRange local, char* data)>;

// Returns the reader of rows in memory that does not change meanwhile, [L, row_bytes].
ReadRows RowsIn(const void* rows, int64_t row_bytes);

// Move rows between the two placements of placement.h, without a copy of the rank's rows: one side is the rank's local
// rows, the other passes by in pieces of at most step_bytes. A step's rows exist a second time while they are packed,
// and a third time when they have arrived. An error of `take` or `fill` is returned on all ranks, and the communicator
// stays usable. `read` is called once for each row, with runs of any length. `out` is [L, row_bytes].
Status RelayToContiguous(Communicator& communicator, std::string_view name, MovedTable table, const ReadRows& read,
                         const TakeRows& take, int64_t step_bytes = kTableStepBytes);
Status RelayFromContiguous(Communicator& communicator, std::string_view name, MovedTable table, const FillRows& fill,
                           void* out, int64_t step_bytes = kTableStepBytes);

// Gives every rank the whole table, [rows, row_bytes] by id. `in` is [L, row_bytes]. The
// caller allocates `out`: in the whole job, R copies of the table.
Status GatherTable(Communicator& communicator, std::string_view name, MovedTable table, const void* in, void* out,
                   int64_t step_bytes = kTableStepBytes);

// The gradient of GatherTable: each rank's gradient of the whole table, [rows, width], is summed over the ranks in rank
// order, and a rank gets the sums of its own rows, [L, width]. `dtype` is any type that ReduceScatter can sum.
Status ReduceTable(Communicator& communicator, std::string_view name, DType dtype, const Placement& placement,
                   int64_t width, const void* in, void* out, int64_t step_bytes = kTableStepBytes);

}  // namespace lockstep
