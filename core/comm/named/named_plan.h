#pragma once

#include <cstdint>
#include <string>

#include "core/base/dtype.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/named/named_batch.h"

// How a batch becomes collectives: the parts that do not depend on the place of the tensors. Exchanges of tensors on
// CPUs (named_exchange.h) and on devices (core/device/named) share them.
namespace lockstep {

// Returns "grad/a and 3 more": the name of a batch's collectives.
std::string NameOf(const NamedBatch& batch);

// Returns the reduction of the elements. The mean of integers is a sum that is divided afterwards.
ReduceOp OpOf(const NamedRequest& request);

// Returns the type in which the reduction is computed. A mean fits into the type of its values, but the sum before it
// may not. No type is wider than 64 bits; a sum of 64-bit values wraps around, as any sum does.
DType ComputedIn(const NamedRequest& request);
inline bool IsWidened(const NamedRequest& request) { return ComputedIn(request) != request.dtype; }
// Returns whether the reduction is followed by a division by the number of ranks.
inline bool IsDivided(const NamedRequest& request) {
  return request.reduction == NamedReduction::kMean && !IsFloatingPoint(request.dtype);
}

// Returns the bytes of the request's tensor, and of one of its rows.
inline int64_t BytesOf(const NamedRequest& request) { return request.Elements() * DTypeSize(request.dtype); }
inline int64_t RowBytesOf(const NamedRequest& request) { return request.RowElements() * DTypeSize(request.dtype); }

// Returns the rows of one rank when `rows` are divided among the ranks: the first ranks get one more if it does not
// come out even.
inline int64_t ShareOf(int64_t rows, int rank, int ranks) { return rows / ranks + (rank < rows % ranks ? 1 : 0); }

// Returns the rows that one rank sends to another in an all-gather or all-to-all.
inline int64_t RowsBetween(const NamedBatch::Entry& entry, int from, int to) {
  return entry.splits.empty() ? entry.rows[from] : entry.splits[from][to];
}

}  // namespace lockstep
