#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/sharding/exchange.h"

// The lookup of ids in tables whose rows are shared out by modulo (placement.h), in three named steps of which these
// are the two that communicate:
//
//     ids [N] --route--> local_rows [M] --plain gather on the shard--> rows [M, D] --combine--> [N, D]
//
// Route drops a rank's duplicates (N ids become U distinct ones), sorts them by owner and sends each owner the local
// rows that it is asked for; an owner ends with the M rows that all ranks ask of it, in rank order. Combine sends the
// rows back the way the ids came and puts one at the place of each id. The gradient of combine goes the way of the ids
// again: a rank sums its gradients per distinct id, in the order of the ids, and the owner gets M gradients in rank
// order. So a sparse update that adds in order sums every row in rank order, whatever the ranks' speed.
//
// Each step takes a list of lookups and makes one exchange for all of them. What a rank can do and check alone is a
// function of its own: where it fails, the caller declines the exchange (communicator.h), so that the peers hear of it.
// Letters: R ranks, N ids of a lookup on this rank, U = sum(send) distinct ids, M = sum(recv) rows that this rank
// serves, D the bytes or elements of a row.
namespace lockstep {

// How many rows of one lookup this rank asks of each rank, and serves to each: both of length R.
struct Splits {
  std::vector<int64_t> send;
  std::vector<int64_t> recv;
};

// The ids that this rank looks up in one table.
struct LookupIds {
  std::string_view table;  // for messages
  int64_t rows;            // of the whole table: ids are in [0, rows)
  DType dtype;             // kInt32 or kInt64
  const void* ids;         // [N]
  int64_t count;           // N, at most 2^31 - 1
  int32_t* inverse;        // [N], written: the place of each id among the U distinct ones, in order of their owners
};

// What a rank finds out about its lookups without its peers: the half of route that needs no communication.
struct RoutePlan {
  std::vector<std::vector<int64_t>> local_rows;  // of each lookup: [U], by owner
  std::vector<std::vector<int64_t>> send;        // of each lookup: [R]
};

// Drops duplicates and sorts by owner. Writes `inverse` of each lookup. With one rank nothing has to travel, and ids
// stay as they are, duplicates and all. INVALID_ARGUMENT for an id out of range, with table, place and range.
Result<RoutePlan> PlanRoute(int size, std::span<const LookupIds> lookups);

// What PlanRoute checks of ids, and nothing else; `inverse` is not used.
Status CheckIds(const LookupIds& lookup);

// Gives the memory for the `count` local rows that this rank serves in lookup number `lookup`.
using AllocateRows = std::function<Result<int64_t*>(size_t lookup, int64_t count)>;

// Sends what was planned: one exchange, after which `splits` and the allocated local rows are filled.
Status ExchangeRoute(Communicator& communicator, std::string_view name, const RoutePlan& plan, std::span<Splits> splits,
                     const AllocateRows& allocate);

// Rows on their way back to those who asked for them.
struct LookupRows {
  std::span<const int64_t> send;  // [R], of the route
  std::span<const int64_t> recv;  // [R], of the route
  int64_t row_bytes;
  const void* rows;        // [M, row_bytes]: the rows that this rank serves, in the order of the route
  int64_t row_count;       // M
  const int32_t* inverse;  // [N], of the route
  int64_t count;           // N
  void* out;               // [N, row_bytes]: the row of each id
};

// INVALID_ARGUMENT where the arguments don't fit one another.
Status CheckRows(int size, std::span<const LookupRows> lookups);

// One exchange for all lookups, which CheckRows has found good.
Status Combine(Communicator& communicator, std::string_view name, std::span<const LookupRows> lookups);

// Gradients on their way to the owners of the rows.
struct LookupGradient {
  std::span<const int64_t> send;  // [R], of the route
  std::span<const int64_t> recv;  // [R], of the route
  DType dtype;                    // floating point
  int64_t width;                  // elements of a row
  const void* gradient;           // [N, width]: by id; N may be any part of the lookup's ids
  const int32_t* inverse;         // [N], of the route
  int64_t count;                  // N
  void* out;                      // [M, width]: by local row of the route, in rank order
};

// A rank's own gradients, summed per distinct id: the half of the step that needs no communication.
struct GradientSums {
  std::vector<SendBuffer> sums;  // of each lookup: [U, width]
};

// INVALID_ARGUMENT where the arguments don't fit one another or the type is no floating-point one.
Result<GradientSums> SumGradients(Communicator& communicator, std::span<const LookupGradient> lookups);

// Sends the sums to the owners: one exchange for all lookups.
Status ExchangeGradients(Communicator& communicator, std::string_view name, std::span<const LookupGradient> lookups,
                         const GradientSums& sums);

}  // namespace lockstep
