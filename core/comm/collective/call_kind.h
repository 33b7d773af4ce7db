#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

// The kind of collective, part of a call's fingerprint (call.h). kDecline replaces any of the others.
enum class CallKind : uint8_t { kAllReduce, kReduceScatter, kBroadcast, kAllGatherV, kAllToAllV, kBarrier, kDecline };

// Returns "allreduce", ..., a literal, for messages.
constexpr std::string_view CallKindName(CallKind kind) {
  switch (kind) {
    case CallKind::kAllReduce: return "allreduce";
    case CallKind::kReduceScatter: return "reducescatter";
    case CallKind::kBroadcast: return "broadcast";
    case CallKind::kAllGatherV: return "allgather";
    case CallKind::kAllToAllV: return "alltoall";
    case CallKind::kBarrier: return "barrier";
    case CallKind::kDecline: return "decline";
  }
  return "unknown";
}

}  // namespace lockstep
