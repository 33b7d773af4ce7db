#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/collective/send_buffer.h"

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
// function of its own: where it fails, the caller declines the exchange (comm/collective/communicator.h), so that the
// peers hear of it.
//
//   step       alone           with the peers       bytes sent by a rank     bytes received
//   route      PlanRoute       ExchangeRoute        8 U                      8 M
//   combine    CheckRows       Combine              M D                      U D
//   gradient   SumGradients    ExchangeGradients    U D                      M D
//
// These are for one lookup; with several, a route also sends 8 bytes for each lookup and rank.
//
// Letters: R ranks, N ids of a lookup on this rank, U = sum(send) distinct ids, M = sum(recv) rows that this rank
// serves, D the bytes or elements of a row.
//
// Where hosts have several ranks, a lookup may go in two stages, each a lookup of its own, so that what the ranks of a
// host have in common goes to another host once:
//
//     ids --route--> ids of this host --route--> local_rows --gather--> rows --combine--> rows of this host
//     --combine-->
//
// In the first stage an id is sent to the owner's carrier, the rank of the own host that sends to that owner
// (Communicator::carriers), and travels as it is; in the second the carrier drops the duplicates of its host and sends
// the others on. Gradients are summed on each rank, then on its carrier in the order of the host's ranks, and come to
// the owner once from each host, in the order of the carriers' ranks.
//
// How the parts are put together, for one lookup:
//
//   Result<RoutePlan> plan = PlanRoute(communicator.size(), {&ids, 1});
//   if (!plan.ok()) return communicator.Decline(name, plan.status());
//   LOCKSTEP_RETURN_IF_ERROR(ExchangeRoute(communicator, name, *plan, {&splits, 1}, allocate_local_rows));
//   ... gather local_rows from the shard into rows ...
//   if (Status status = CheckRows(communicator.size(), {&rows, 1}); !status.ok()) {
//     return communicator.Decline(name, status);
//   }
//   return Combine(communicator, name, {&rows, 1});
//
// All exchanging functions are collectives: every rank calls them with as many lookups, in the same order, of the same
// row sizes, also where it has no ids for some. They return the communicator's errors; what they wrote is unspecified
// then. The others run on any thread, at once, and touch nothing but their arguments. The structs own nothing unless
// they say so: what they point to outlives the call, and spans of a route stay with the caller.
namespace lockstep {

// How many rows of one lookup this rank asks of each rank, and serves to each: both of length R. What one rank asks of
// another is what that one serves to it: send[r] here is recv[rank] there.
struct Splits {
  std::vector<int64_t> send;
  std::vector<int64_t> recv;
};

// In place of a number of rows: a dynamic table, in which any int64 is a key. Its keys are owned by OwnerOfKey, and
// travel as they are, in place of local rows.
inline constexpr int64_t kAnyKey = -1;
// The same, and with every key travels how often it was looked up: an item is two numbers, the key and its count.
inline constexpr int64_t kCountedKeys = -2;

// The ids that this rank looks up in one table.
struct LookupIds {
  std::string_view table;  // for messages
  int64_t rows;            // of the whole table: ids are in [0, rows); or kAnyKey, kCountedKeys
  DType dtype;             // kInt32 or kInt64
  const void* ids;         // [N]
  int64_t count;           // N, at most 2^31 - 1
  int32_t* inverse;        // [N], written: the place of each id among the U distinct ones, in order of their owners
  // Of a route in two stages, see above. [R]: where what is for each owner is sent; empty: to the owner itself.
  std::span<const int> carriers = {};
  const int64_t* times = nullptr;  // [N], of counted keys: how often each was looked up; null: once each
};

// What a rank finds out about its lookups without its peers: the half of route that needs no communication. Owns its
// vectors: 8 bytes for each distinct id.
struct RoutePlan {
  // As the owner counts them: what travels. Owner r's part begins behind those of the owners before it,
  // sum(send[0..r)).
  std::vector<std::vector<int64_t>> local_rows;  // of each lookup: [U * width], by owner
  std::vector<std::vector<int64_t>> send;        // of each lookup: [R]
  std::vector<int> widths;                       // of each lookup: the numbers of an item, 2 for kCountedKeys, else 1
};

// Drops duplicates and sorts by owner. Writes `inverse` of each lookup. With one rank nothing has to travel, and ids
// stay as they are, duplicates and all. Takes memory for a hash table of up to 64 bytes an id while it runs.
//
// INVALID_ARGUMENT for an id out of range, with table, place and range, and for a lookup of 2^31 ids or more. The first
// bad id counts; what was written by then is unspecified.
Result<RoutePlan> PlanRoute(int size, std::span<const LookupIds> lookups);

// What PlanRoute checks of ids, and nothing else; `inverse` is not used.
Status CheckIds(const LookupIds& lookup);

// Gives the memory for the `count` local rows (times the width) that this rank serves in lookup number `lookup`. Called
// once for each lookup, in order, inside the exchange and on its thread; its error ends the exchange for this rank
// alone. May give null for none.
using AllocateRows = std::function<Result<int64_t*>(size_t lookup, int64_t count)>;

// Sends what was planned: one exchange, after which `splits` and the allocated local rows, [M] in rank order, are
// filled. All ids have been checked by the ranks that sent them: 0 <= local row < LocalRows of this rank, provided that
// the ranks agree about the table's size. FAILED_PRECONDITION on all ranks where their numbers of lookups differ.
Status ExchangeRoute(Communicator& communicator, std::string_view name, const RoutePlan& plan, std::span<Splits> splits,
                     const AllocateRows& allocate);

// Rows on their way back to those who asked for them. Their type does not matter, only their size, which is the same on
// all ranks.
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

// INVALID_ARGUMENT where the arguments don't fit one another: splits that are not [R] or negative, another number of
// rows than the route serves, or an inverse beyond the distinct ids. Reads all of `inverse`.
Status CheckRows(int size, std::span<const LookupRows> lookups);

// One exchange for all lookups, which CheckRows has found good: it does not look again. Fills `out` of each.
Status Combine(Communicator& communicator, std::string_view name, std::span<const LookupRows> lookups);

// Gradients on their way to the owners of the rows. With W workers the rows of `out` are sums and not means: who trains
// divides them.
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

// A rank's own gradients, summed per distinct id: the half of the step that needs no communication. Lies in shared
// memory where it is large and there is some: with a single lookup the owners read it in place. So it is kept until the
// exchange has ended.
struct GradientSums {
  std::vector<SendBuffer> sums;  // of each lookup: [U, width]
};

// INVALID_ARGUMENT where the arguments don't fit one another or the type is no floating-point one. Needs the
// communicator for its memory and size alone: nothing is exchanged. Gradients of one id are added one after the other
// in the order of the ids, from the first, in float32 for 16-bit types; so the sums are the same bits in every run.
Result<GradientSums> SumGradients(Communicator& communicator, std::span<const LookupGradient> lookups);

// Sends the sums to the owners: one exchange for all lookups. `lookups` and `sums` are those of SumGradients. `out` has
// a row for each rank that asked for a local row, not their sum: adding them is left to the optimizer's update, which
// does it in this order.
Status ExchangeGradients(Communicator& communicator, std::string_view name, std::span<const LookupGradient> lookups,
                         const GradientSums& sums);

}  // namespace lockstep
