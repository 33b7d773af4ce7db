#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/collective/call_kind.h"
#include "core/comm/collective/communicator.h"

// The comparison of calls, the same for every backend. Each rank describes its call by a fingerprint and sees the
// fingerprints of all ranks. So all ranks come to the same result: they agree, they disagree, or a rank declined.
namespace lockstep {

// A rank's call in the form that ranks compare. The members are views: name and counts have to outlive it. Members that
// a kind does not use keep their defaults, equal on all ranks.
struct Call {
  CallKind kind;
  std::string_view name;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  // The root of a Broadcast.
  int root = 0;
  // The elements of an item.
  int64_t width = 1;
  int64_t count = 0;                     // elements, items or bytes
  std::span<const int64_t> counts = {};  // per rank, if the call has them
  bool count_agrees = true;              // whether count and counts have to be the same on all ranks
};

// Returns a hash of everything that has to be equal: kind, type, reduction, root, width, name and, if they have to
// agree, counts. Different calls have the same hash with a chance of about 2^-63. It is never kDeclinedCall.
uint64_t FingerprintOf(const Call& call);

// The fingerprint of a rank that declines.
inline constexpr uint64_t kDeclinedCall = 0;

// Returns "allreduce 'grad' (sum of 10 x float32)": a rank's call for messages, with everything that is compared.
std::string DescribeCall(const Call& call);

// Returns FAILED_PRECONDITION that names the calls of all ranks; ranks with the same call are listed together.
//   rank          the rank that reports it
//   number        the number of the call
//   ranks         the names of the compared ranks, [n]
//   fingerprints  the call of each, [n]
//   describe      returns DescribeCall of the i-th rank's call
Status CallsDiffer(int rank, int64_t number, std::span<const int> ranks, std::span<const uint64_t> fingerprints,
                   const std::function<std::string(int i)>& describe);

}  // namespace lockstep
