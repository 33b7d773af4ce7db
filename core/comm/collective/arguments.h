#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/collective/reduce.h"

// What every backend checks before anything is exchanged, in the same words. All errors are INVALID_ARGUMENT and name
// the call.
namespace lockstep {

// The function; an error for the mean of whole numbers.
Result<ReduceFunction> CheckReduction(std::string_view call, std::string_view name, ReduceOp op, DType dtype);
Status CheckAllReduce(std::string_view name, int64_t count, const void* in, const void* out);
// One count for each of `ranks` ranks, none negative, and `in` there if they are not all zero.
Status CheckCounts(std::string_view call, std::string_view name, int ranks, std::span<const int64_t> counts,
                   const void* in);
// Beside CheckCounts: `out` there where the own count is not zero.
Status CheckReduceScatter(std::string_view name, int64_t own_count, const void* out);
Status CheckBroadcast(std::string_view name, int ranks, int root, int64_t bytes, const void* data);
Status CheckAllGather(std::string_view name, Item item, int64_t count, const void* in);
Status CheckAllToAll(std::string_view name, Item item, int ranks, std::span<const int64_t> send_counts, const void* in);

int64_t SumOf(std::span<const int64_t> counts);

// The memory for what is received. A rank that cannot get it still goes through the exchange, so that its peers don't
// wait, and fails afterwards.
struct Received {
  Status status;
  char* data = nullptr;
};
// Asks the caller for memory, once. Null for no items is right.
Received AllocateFor(std::string_view call, std::string_view name, std::span<const int64_t> counts,
                     const Allocate& allocate);

}  // namespace lockstep
