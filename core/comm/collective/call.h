#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"

// What the ranks of a collective compare, the same for every backend: each describes its call by a fingerprint, sees
// those of all, and so all see together that they agree, disagree, or that somebody declined.
namespace lockstep {

// Which collective. Part of the fingerprint. kDecline stands in place of any of the others.
enum class CallKind : uint8_t { kAllReduce, kReduceScatter, kBroadcast, kAllGatherV, kAllToAllV, kBarrier, kDecline };

// "allreduce", ...: for messages.
std::string_view CallKindName(CallKind kind);

// What a rank is about to do, as it is compared between ranks. Views: name and counts have to outlive the call. What a
// kind of call does not use keeps its default, the same on all ranks.
struct Call {
  CallKind kind;
  std::string_view name;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  // Of a Broadcast.
  int root = 0;
  // Elements of an item.
  int64_t width = 1;
  int64_t count = 0;                     // elements, items or bytes
  std::span<const int64_t> counts = {};  // per rank, where the call has such
  bool count_agrees = true;              // whether count and counts have to be the same on all ranks
};

// Of everything that has to be the same: kind, type, reduction, root, width, name and, where they have to agree,
// counts. Differing calls have the same one by a chance of about 2^-63. Never kDeclinedCall.
uint64_t FingerprintOf(const Call& call);

// The fingerprint of a refusal.
inline constexpr uint64_t kDeclinedCall = 0;

// "allreduce 'grad' (sum of 10 x float32)": how a message shows what a rank called, with all that is compared.
std::string DescribeCall(const Call& call);

// FAILED_PRECONDITION that says who called what, those who called the same together.
//   rank          who says it
//   number        of the call
//   ranks         how those that are compared are called, [n]
//   fingerprints  what each called, [n]
//   describe      of the i-th of them: DescribeCall of what it called
Status CallsDiffer(int rank, int64_t number, std::span<const int> ranks, std::span<const uint64_t> fingerprints,
                   const std::function<std::string(int i)>& describe);

}  // namespace lockstep
