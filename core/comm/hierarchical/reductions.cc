#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "core/comm/collective/arguments.h"
#include "core/comm/collective/arrivals.h"
#include "core/comm/collective/elementwise.h"
#include "core/comm/collective/reduce.h"
#include "core/comm/hierarchical/hierarchical_communicator.h"

// AllReduce and ReduceScatter over several hosts. A mean is a sum that is divided by the number of ranks at the end.

namespace lockstep::hierarchical {
namespace {

// The size up to which data goes only through the leaders, with the comparison: the size of one slot of shared memory.
constexpr int64_t kMostSmallBytes = shm::kSlotBytes;

ReduceOp WithinParts(ReduceOp op) { return op == ReduceOp::kMean ? ReduceOp::kSum : op; }

}  // namespace

Status HierarchicalCommunicator::AllReduce(std::string_view name, ReduceOp op, DType dtype, int64_t count,
                                           const void* in, void* out) {
  const int64_t bytes = count * DTypeSize(dtype);
  return Observe(CallKind::kAllReduce, name, bytes, bytes, [&]() -> Status {
    const Calling calling(*this, CallKind::kAllReduce, name);
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable());
    if (one_each_) return FoldError(across_->AllReduce(name, op, dtype, count, in, out));
    LOCKSTEP_RETURN_IF_ERROR(CheckReduction("allreduce", name, op, dtype).status());
    LOCKSTEP_RETURN_IF_ERROR(CheckAllReduce(name, count, in, out));
    const Call call = {.kind = CallKind::kAllReduce, .name = name, .dtype = dtype, .op = op, .count = count};
    const bool small = count * DTypeSize(dtype) <= kMostSmallBytes;
    return small ? AllReduceSmall(call, op, in, out) : AllReduceLarge(call, op, in, out);
  });
}

Status HierarchicalCommunicator::AllReduceSmall(const Call& call, ReduceOp op, const void* in, void* out) {
  const ReduceOp part = WithinParts(op);
  const int64_t bytes = call.count * DTypeSize(call.dtype);
  // Separate from `out`, which may be `in`: another host may still decline.
  alignas(shm::kCacheLineBytes) std::array<char, kMostSmallBytes> memory;
  void* const sum = memory.data();
  Status status = FoldError(local_->AllReduceInSlot(call, FindReduce(part, call.dtype), in, sum));
  status = RunAsLeader(call.name, status, [&] { return across_->AllReduceAs(call, part, sum, sum); });
  LOCKSTEP_RETURN_IF_ERROR(PublishResult(call.name, status, bytes, sum));
  if (op == ReduceOp::kMean)
    Divide(call.dtype, size_, sum, call.count, out);
  else if (bytes > 0)
    std::memcpy(out, sum, static_cast<size_t>(bytes));
  return OkStatus();
}

// Each relay rank has a share. The ranks of a host reduce it for the relay rank, and the rail reduces it over the
// hosts. Then the ranks of a host pass their shares on to each other.
Status HierarchicalCommunicator::AllReduceLarge(const Call& call, ReduceOp op, const void* in, void* out) {
  LOCKSTEP_RETURN_IF_ERROR(Agree(call).status());
  const int64_t width = DTypeSize(call.dtype);
  const int64_t line = 2 * shm::kCacheLineBytes / width;
  const int64_t share = ((call.count + rails_ - 1) / rails_ + line - 1) / line * line;
  std::vector<int64_t> counts(locals().size());
  int64_t begin = 0;
  for (int64_t l = 0, left = call.count; l < static_cast<int64_t>(counts.size()); ++l) {
    counts[l] = l < rails_ ? std::min(share, left) : 0;
    left -= counts[l];
    if (l < index_) begin += counts[l];
  }
  const int64_t own = counts[index_];
  char* const mine = static_cast<char*>(out) + begin * width;
  const ReduceOp part = WithinParts(op);
  LOCKSTEP_RETURN_IF_ERROR(FoldError(local_->ReduceScatter(call.name, part, call.dtype, counts, in, mine)));
  if (on_rail()) LOCKSTEP_RETURN_IF_ERROR(FoldError(across_->AllReduce(call.name, part, call.dtype, own, mine, mine)));
  if (op == ReduceOp::kMean) Divide(call.dtype, size_, mine, own, mine);
  return FoldError(
      local_->AllGatherV(call.name, {call.dtype, 1}, own, mine, lockstep::Expecting(call.name, counts, out)));
}

// Goes through the leaders: each has the sum of its host, and receives the other hosts' data for its ranks.
Status HierarchicalCommunicator::ReduceScatter(std::string_view name, ReduceOp op, DType dtype,
                                               std::span<const int64_t> counts, const void* in, void* out) {
  const int64_t own = counts.size() == static_cast<size_t>(size_) ? counts[rank_] : 0;
  const int64_t to_peers = SumOf(counts) * DTypeSize(dtype), from_peers = own * DTypeSize(dtype);
  return Observe(CallKind::kReduceScatter, name, to_peers, from_peers, [&]() -> Status {
    const Calling calling(*this, CallKind::kReduceScatter, name);
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable());
    if (one_each_) return FoldError(across_->ReduceScatter(name, op, dtype, counts, in, out));
    LOCKSTEP_RETURN_IF_ERROR(CheckReduction("reducescatter", name, op, dtype).status());
    LOCKSTEP_RETURN_IF_ERROR(CheckCounts("reducescatter", name, size_, counts, DTypeSize(dtype), in));
    LOCKSTEP_RETURN_IF_ERROR(CheckReduceScatter(name, counts[rank_], out));
    const int64_t total = SumOf(counts);
    LOCKSTEP_RETURN_IF_ERROR(Agree({.kind = CallKind::kReduceScatter,
                                    .name = name,
                                    .dtype = dtype,
                                    .op = op,
                                    .count = total,
                                    .counts = counts})
                                 .status());
    const int64_t width = DTypeSize(dtype);
    const Scratch packed = AllocateScratch(ranks_follow_hosts_ ? 0 : total * width);
    const char* from = static_cast<const char*>(in);
    if (!ranks_follow_hosts_) {
      ToHostOrder(counts, width, from, packed.data);
      from = packed.data;
    }
    std::vector<int64_t> to_leader(locals().size()), to_hosts(num_hosts()), to_locals(locals().size());
    to_leader[0] = total;
    for (int host = 0; host < num_hosts(); ++host) {
      for (const int rank : place_.hosts[host]) to_hosts[host] += counts[rank];
    }
    const ReduceOp part = WithinParts(op);
    const Scratch sums = AllocateScratch(leads() ? total * width : 0);
    const Scratch for_host = AllocateScratch(leads() ? to_hosts[place_.host] * width : 0);
    LOCKSTEP_RETURN_IF_ERROR(FoldError(local_->ReduceScatter(name, part, dtype, to_leader, from, sums.data)));
    if (leads()) {
      LOCKSTEP_RETURN_IF_ERROR(
          FoldError(across_->ReduceScatter(name, part, dtype, to_hosts, sums.data, for_host.data)));
      for (size_t l = 0; l < locals().size(); ++l) to_locals[l] = counts[locals()[l]];
    }
    std::vector<int64_t> from_leader(locals().size());
    from_leader[0] = counts[rank_];
    LOCKSTEP_RETURN_IF_ERROR(FoldError(
        local_->AllToAllV(name, {dtype, 1}, to_locals, for_host.data, lockstep::Expecting(name, from_leader, out))));
    if (op == ReduceOp::kMean) Divide(dtype, size_, out, counts[rank_], out);
    return OkStatus();
  });
}

}  // namespace lockstep::hierarchical
