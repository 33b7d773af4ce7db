#include "core/comm/collective/arguments.h"

#include <numeric>

#include "core/base/strings.h"
#include "core/comm/collective/arrivals.h"

namespace lockstep {

Result<ReduceFunction> CheckReduction(std::string_view call, std::string_view name, ReduceOp op, DType dtype) {
  const ReduceFunction reduce = FindReduce(op, dtype);
  if (reduce == nullptr) {
    return InvalidArgument(
        StrCat(call, " '", name, "': ", ReduceOpName(op), " of ", DTypeName(dtype), " is not defined"));
  }
  return reduce;
}

Status CheckAllReduce(std::string_view name, int64_t count, const void* in, const void* out) {
  if (count >= 0 && (count == 0 || (in != nullptr && out != nullptr))) return OkStatus();
  return InvalidArgument(StrCat("allreduce '", name, "': ", count, " elements from ", in, " to ", out));
}

Status CheckCounts(std::string_view call, std::string_view name, int ranks, std::span<const int64_t> counts,
                   int64_t item_bytes, const void* in) {
  if (static_cast<int>(counts.size()) != ranks) {
    return InvalidArgument(
        StrCat(call, " '", name, "': ", counts.size(), " counts, wanted one for each of ", ranks, " ranks"));
  }
  for (int rank = 0; rank < ranks; ++rank) {
    if (counts[rank] < 0)
      return InvalidArgument(StrCat(call, " '", name, "': count ", counts[rank], " for rank ", rank));
  }
  if (in == nullptr && item_bytes > 0 && SumOf(counts) > 0) {
    return InvalidArgument(StrCat(call, " '", name, "': no memory was given for ", SumOf(counts), " items to send"));
  }
  return OkStatus();
}

Status CheckReduceScatter(std::string_view name, int64_t own_count, const void* out) {
  if (out != nullptr || own_count == 0) return OkStatus();
  return InvalidArgument(StrCat("reducescatter '", name, "': no memory for ", own_count, " elements"));
}

Status CheckBroadcast(std::string_view name, int ranks, int root, int64_t bytes, const void* data) {
  if (root >= 0 && root < ranks && bytes >= 0 && (bytes == 0 || data != nullptr)) return OkStatus();
  return InvalidArgument(
      StrCat("broadcast '", name, "': ", bytes, " bytes at ", data, " of root ", root, " among ", ranks, " ranks"));
}

Status CheckAllGather(std::string_view name, Item item, int64_t count, const void* in) {
  if (count >= 0 && item.width >= 0 && (count * item.bytes() == 0 || in != nullptr)) return OkStatus();
  return InvalidArgument(StrCat("allgather '", name, "': ", count, " items of width ", item.width, " at ", in));
}

Status CheckAllToAll(std::string_view name, Item item, int ranks, std::span<const int64_t> send_counts,
                     const void* in) {
  if (item.width < 0) return InvalidArgument(StrCat("alltoall '", name, "': items of width ", item.width));
  return CheckCounts("alltoall", name, ranks, send_counts, item.bytes(), in);
}

int64_t SumOf(std::span<const int64_t> counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

Received AllocateFor(std::string_view call, std::string_view name, std::span<const int64_t> counts, int64_t item_bytes,
                     const Allocate& allocate) {
  const Status possible = CheckAnnounced(name, counts, item_bytes);
  if (!possible.ok()) return {possible.WithPrefix(StrCat(call, " ")), nullptr};
  Result<void*> memory = allocate(counts);
  if (!memory.ok()) return {memory.status(), nullptr};
  if (*memory == nullptr && item_bytes > 0 && SumOf(counts) > 0) {
    return {InvalidArgument(StrCat(call, " '", name, "': no memory was given for ", SumOf(counts), " items")), nullptr};
  }
  return {OkStatus(), static_cast<char*>(*memory)};
}

}  // namespace lockstep
