#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/collective/reduce.h"

// Checks that every backend makes before anything is exchanged, with the same messages. All errors are INVALID_ARGUMENT
// and name the call.
namespace lockstep {

// Returns the function, or an error for the mean of integers.
Result<ReduceFunction> CheckReduction(std::string_view call, std::string_view name, ReduceOp op, DType dtype);
Status CheckAllReduce(std::string_view name, int64_t count, const void* in, const void* out);
// Checks that there is one count for each of `ranks` ranks, none negative, and that `in` is not null unless all items
// together, of `item_bytes` each, have no bytes.
Status CheckCounts(std::string_view call, std::string_view name, int ranks, std::span<const int64_t> counts,
                   int64_t item_bytes, const void* in);
// Checks, in addition to CheckCounts, that `out` is not null unless this rank's count is zero.
Status CheckReduceScatter(std::string_view name, int64_t own_count, const void* out);
Status CheckBroadcast(std::string_view name, int ranks, int root, int64_t bytes, const void* data);
Status CheckAllGather(std::string_view name, Item item, int64_t count, const void* in);
Status CheckAllToAll(std::string_view name, Item item, int ranks, std::span<const int64_t> send_counts, const void* in);

int64_t SumOf(std::span<const int64_t> counts);

// The memory for received data. A rank that cannot get it still goes through the exchange, so that its peers do not
// wait, and fails afterwards.
struct Received {
  Status status;
  char* data = nullptr;
};
// Asks the caller for memory, once, if the announced counts are possible (arrivals.h). Null is valid if all items
// together have no bytes: also for items of width 0.
Received AllocateFor(std::string_view call, std::string_view name, std::span<const int64_t> counts, int64_t item_bytes,
                     const Allocate& allocate);

}  // namespace lockstep
