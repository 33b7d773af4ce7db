#include "core/device/comm/device_communicator.h"

#include "core/base/strings.h"
#include "core/comm/collective/arguments.h"
#include "core/comm/collective/arrivals.h"
#include "core/comm/collective/call.h"

namespace lockstep::device {

Call DeviceCommunicator::ExchangeCall(CallKind kind, std::string_view name, Item item) {
  return {.kind = kind, .name = name, .dtype = item.dtype, .width = item.width, .count_agrees = false};
}

Status DeviceCommunicator::CheckWidth(std::string_view call, std::string_view name, Item item) {
  if (item.width >= 0) return OkStatus();
  return InvalidArgument(StrCat(call, " '", name, "': items of width ", item.width));
}

Result<std::vector<int64_t>> DeviceCommunicator::GatherCounts(std::string_view name, Item item, int64_t count) {
  LOCKSTEP_RETURN_IF_ERROR(CheckWidth("allgather", name, item));
  if (count < 0) return InvalidArgument(StrCat("allgather '", name, "': ", count, " items"));
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<int64_t> counts,
                            Compare(ExchangeCall(CallKind::kAllGatherV, name, item), std::span(&count, 1)));
  LOCKSTEP_RETURN_IF_ERROR(CheckAnnounced(name, counts, item.bytes()).WithPrefix("allgather "));
  return counts;
}

Result<std::vector<int64_t>> DeviceCommunicator::ExchangeCounts(std::string_view name, Item item,
                                                                std::span<const int64_t> send_counts) {
  LOCKSTEP_RETURN_IF_ERROR(CheckWidth("alltoall", name, item));
  LOCKSTEP_RETURN_IF_ERROR(CheckCounts("alltoall", name, size(), send_counts, 0, nullptr));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> all,
                            Compare(ExchangeCall(CallKind::kAllToAllV, name, item), send_counts));
  std::vector<int64_t> counts;
  for (int r = 0; r < size(); ++r) counts.push_back(all[r * size() + rank()]);
  LOCKSTEP_RETURN_IF_ERROR(CheckAnnounced(name, counts, item.bytes()).WithPrefix("alltoall "));
  return counts;
}

}  // namespace lockstep::device
