#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/collective/send_buffer.h"
#include "core/sharding/placement.h"

// The lookup of ids in tables whose rows are on different ranks (placement.h), in three named steps. This file has the
// two that communicate, route and combine:
//
//     ids [N] --route--> local_rows [M] --plain gather on the shard--> rows [M, D] --combine--> [N, D]
//
// Route drops a rank's duplicates (N ids become U distinct ones), sorts them by owner and sends each owner the wanted
// local rows. So an owner gets the M rows that all ranks ask of it, in rank order. Combine sends the rows back the way
// the ids came and puts one at the position of each id. The gradient of combine goes the way of the ids again: a rank
// sums its gradients per distinct id, in the order of the ids and in blocks (core/base/block_totals.h), and the owner
// gets M gradients in rank order. So a sparse update that adds in order sums every row in rank order, regardless of the
// ranks' speed.
//
// Each step takes a list of lookups and makes one exchange for all of them. The part that a rank can do and check by
// itself is a function of its own. If it fails, the caller declines the exchange (comm/collective/communicator.h), so
// that the peers get the error.
//
//   step       on this rank    with the peers       bytes sent by a rank     bytes received
//   route      PlanRoute       ExchangeRoute        8 U                      8 M
//   combine    CheckRows       Combine              M D                      U D
//   gradient   SumGradients    ExchangeGradients    U D                      M D
//
// These are the bytes for one lookup. With several lookups, a route also sends 8 bytes for each lookup to
// each rank of which it asks something.
//
// Letters: R ranks, N ids of a lookup on this rank, U = sum(send) distinct ids, M = sum(recv) rows that this rank
// serves, D the bytes or elements of a row.
//
// If hosts have several ranks, a lookup may have two stages, each a lookup of its own. Then an id that several ranks of
// a host need goes to another host once:
//
//     ids --route--> ids of this host --route--> local_rows --gather--> rows --combine--> rows of this host
//     --combine-->
//
// In the first stage an id is sent unchanged to the owner's relay rank: the rank of the same host that sends to that
// owner (Communicator::relay_ranks). In the second stage the relay rank drops the duplicates of its host and sends the
// others to the owner. Gradients are summed on each rank, and then on its relay rank in the order of the host's ranks.
// The owner gets them once from each host, in the order of the relay ranks.
//
// The parts together, for one lookup:
// ```cpp
// Result<RoutePlan> plan = PlanRoute(communicator.size(), {&ids, 1});
// if (!plan.ok()) return communicator.Decline(name, plan.status());
// LOCKSTEP_RETURN_IF_ERROR(ExchangeRoute(communicator, name, *plan, {&splits, 1}, allocate_local_rows));
// ... gather local_rows from the shard into rows ...
// if (Status status = CheckRows(communicator.size(), {&rows, 1}); !status.ok()) {
//   return communicator.Decline(name, status);
// }
// return Combine(communicator, name, {&rows, 1});
// ```
// All exchanging functions are collectives: every rank calls them with the same number of lookups, in the same order,
// with the same row sizes, even if it has no ids for some. They return the communicator's errors; their outputs are
// then undefined. The other functions run on any thread, concurrently, and touch only their arguments. The structs own
// nothing unless their comments state it: their memory outlives the call, and spans of a route stay with the caller.
namespace lockstep {

// The number of rows of one lookup that this rank asks of each rank, and serves to each: both of length R. The two
// sides correspond: send[r] here is recv[rank] on rank r.
struct Splits {
  std::vector<int64_t> send;
  std::vector<int64_t> recv;
};

// The ids that this rank looks up in one table.
struct LookupIds {
  std::string_view table;  // for messages
  // Where the rows are; ids are in [0, rows). Nothing for a dynamic table, in which any int64 is a key: key_placement
  // gives its owner, and keys are sent unchanged instead of local rows.
  std::optional<Placement> placement;
  DType dtype;       // kInt32 or kInt64
  const void* ids;   // [N]
  int64_t count;     // N, at most 2^31 - 1
  int32_t* inverse;  // [N], written: the index of each id among the U distinct ones, sorted by owner
  // For a route in two stages, see above. [R]: the relay rank of each owner; empty: ids are sent to the owner itself.
  std::span<const int> relay_ranks = {};
  // [N], for counted keys: how often each was looked up; nothing: once each.
  std::optional<const int64_t*> times = {};
  // For keys: whether the number of its lookups is sent with each. An item is then two numbers, the key and its count.
  bool counted = false;
  KeyPlacement key_placement = {};  // for keys
};

// The part of route that a rank computes without its peers. Owns its vectors: 8 bytes for each distinct id.
struct RoutePlan {
  // The values that are sent, with the owner's row numbers. Owner r's part begins after the parts of the owners before
  // it, at sum(send[0..r)).
  std::vector<std::vector<int64_t>> local_rows;  // for each lookup: [U * width], by owner
  std::vector<std::vector<int64_t>> send;        // for each lookup: [R]
  std::vector<int> widths;                       // for each lookup: int64 values per item, 2 for counted keys, else 1
};

// Drops duplicates and sorts by owner. Writes `inverse` of each lookup. While it runs it takes memory for a hash table
// of up to 64 bytes per id.
//
// INVALID_ARGUMENT for an id out of range, with table, position and range, for keys on a rank that is not in the job,
// and for a lookup of 2^31 ids or more. It returns the error of the first bad id; the outputs are then undefined.
Result<RoutePlan> PlanRoute(int size, std::span<const LookupIds> lookups);

// Makes only PlanRoute's checks of ids, for a job of one worker, whose lookups have no route. Does not use `inverse`.
Status CheckIds(const LookupIds& lookup);

// Returns the memory for the `count` local rows (times the width) that this rank serves in lookup number `lookup`.
// Called once for each lookup, in order, inside the exchange and on its thread. Its error ends the exchange only for
// this rank. May return null for 0 rows.
using AllocateRows = std::function<Result<int64_t*>(size_t lookup, int64_t count)>;

// Sends the planned ids in one exchange, which fills `splits` and the allocated local rows, [M] in rank order. The
// senders have checked all ids: 0 <= local row < LocalRows of this rank, if the ranks agree on the table's placement.
// FAILED_PRECONDITION on all ranks if their numbers of lookups differ.
Status ExchangeRoute(Communicator& communicator, std::string_view name, const RoutePlan& plan, std::span<Splits> splits,
                     const AllocateRows& allocate);

// Rows on their way back to the ranks that asked for them. Only their size matters, not their type; it is the same on
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
  // Whether a row for each distinct id is wanted instead, in the order of the route: N is U; `inverse` is not used.
  bool distinct = false;
};

// Returns INVALID_ARGUMENT if the arguments do not fit together. Splits are [R] and not negative, and there are as many
// rows as the route serves. All places of `inverse` are places of distinct ids; if rows of distinct ids are wanted, the
// count is their number instead.
Status CheckRows(int size, std::span<const LookupRows> lookups);

// Sends back the rows of all lookups in one exchange and fills `out` of each. CheckRows must have accepted them.
Status Combine(Communicator& communicator, std::string_view name, std::span<const LookupRows> lookups);

// Gradients on their way to the owners of the rows. The rows of `out` are sums over the workers; for a mean, the
// training code divides them.
struct LookupGradient {
  std::span<const int64_t> send;  // [R], of the route
  std::span<const int64_t> recv;  // [R], of the route
  DType dtype;                    // floating point
  int64_t width;                  // elements of a row
  const void* gradient;           // [N, width]: by id; N may be any part of the lookup's ids
  const int32_t* inverse;         // [N], of the route
  int64_t count;                  // N
  void* out;                      // [M, width]: by local row of the route, in rank order
  bool distinct = false;          // whether there is one gradient for each distinct id, as in LookupRows
  // Gradients of ids may lie in runs of `run` gradients each. The next run begins `stride` elements after the begin of
  // this one. A run of 0 means that all gradients are contiguous, as gradients of distinct ids always are.
  int64_t run = 0;
  int64_t stride = 0;
};

// A rank's own gradients, summed per distinct id: the part of the step that needs no communication. Large sums lie in
// shared memory if there is some: with a single lookup the owners read them in place. So they are kept until the
// exchange has ended.
struct GradientSums {
  // For each lookup: [U, width]; nothing for gradients of distinct ids, which are sent from where they are.
  std::vector<std::optional<SendBuffer>> sums;
};

// Sums the gradients of each id. INVALID_ARGUMENT if the arguments do not fit together or the type is not floating
// point. Uses the communicator only for its memory and size; nothing is exchanged. Gradients of one id are added in the
// order of the ids, in blocks and in float32 for 16-bit types, so the sums have the same bits in every run.
Result<GradientSums> SumGradients(Communicator& communicator, std::span<const LookupGradient> lookups);

// Sends the sums to the owners in one exchange for all lookups. `lookups` and `sums` are as in SumGradients. `out` has
// one row for each rank that asked for a local row, not their sum: the optimizer's update adds them in this order.
Status ExchangeGradients(Communicator& communicator, std::string_view name, std::span<const LookupGradient> lookups,
                         const GradientSums& sums);

}  // namespace lockstep
