#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/collective/arguments.h"
#include "core/device/comm/nccl_communicator.h"

// The collectives: what is put into a channel's stream. All of it is in the order of the stream, so a step reads what
// the step before has written, and memory is used again without waiting.

namespace lockstep::device {
namespace {

// Up to this size an allreduce sends everything to everybody: one group of kernels in place of two. Larger tensors are
// bound by the bytes.
constexpr int64_t kSmallBytes = 32 << 10;
// Parts of a tensor begin at multiples of this from its start, and parts in the scratch memory at multiples of it.
constexpr int64_t kAlignBytes = 256;

int64_t Aligned(int64_t bytes) { return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes; }

char* At(void* memory, int64_t bytes) { return static_cast<char*>(memory) + bytes; }
const char* At(const void* memory, int64_t bytes) { return static_cast<const char*>(memory) + bytes; }

// Returns where each count begins: [R].
std::vector<int64_t> Offsets(std::span<const int64_t> counts) {
  std::vector<int64_t> offsets(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), int64_t{0});
  return offsets;
}

}  // namespace

bool NcclCommunicator::IsNative(DType dtype) const { return options_.native_sums && nccl::Reduces(dtype); }

Status NcclCommunicator::Copy(Channel& channel, void* to, const void* from, int64_t bytes) {
  if (bytes == 0 || to == from) return OkStatus();
  return ToStatus(library_, library_.copy(channel.stream, to, from, bytes), "copy");
}

Status NcclCommunicator::Exchange(Channel& channel, std::span<const Message> messages) {
  if (std::all_of(messages.begin(), messages.end(), [](const Message& message) { return message.bytes == 0; })) {
    return OkStatus();
  }
  return Enqueue(channel, [&](nccl::Comm comm) {
    for (const Message& message : messages) {
      if (message.bytes == 0) continue;
      const auto bytes = static_cast<size_t>(message.bytes);
      const nccl::Code code =
          message.send != nullptr
              ? api_->Send(message.send, bytes, nccl::Type::kUInt8, message.peer, comm, channel.stream)
              : api_->Recv(message.receive, bytes, nccl::Type::kUInt8, message.peer, comm, channel.stream);
      if (code != nccl::kSuccess && code != nccl::kInProgress) return code;
    }
    return nccl::kSuccess;
  });
}

// Each rank's share of `count` elements: all are equal except the last ones.
std::vector<int64_t> NcclCommunicator::SharesOf(int64_t count, int64_t width) const {
  const int64_t unit = kAlignBytes / width;
  const int64_t each = ((count + size() - 1) / size() + unit - 1) / unit * unit;
  std::vector<int64_t> shares;
  for (int r = 0; r < size(); ++r) shares.push_back(std::clamp<int64_t>(count - r * each, 0, each));
  return shares;
}

int64_t NcclCommunicator::PartsBytes(std::span<const int64_t> counts, int64_t width) const {
  return size() * Aligned(counts[rank()] * width);
}

Status NcclCommunicator::ReduceSmall(Channel& channel, ReduceOp op, DType dtype, int64_t count, const void* in,
                                     void* out) {
  const int64_t bytes = count * DTypeSize(dtype), stride = Aligned(bytes);
  std::vector<Message> messages;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    messages.push_back({r, in, nullptr, bytes});
    messages.push_back({r, nullptr, At(channel.scratch.get(), r * stride), bytes});
  }
  LOCKSTEP_RETURN_IF_ERROR(Copy(channel, At(channel.scratch.get(), rank() * stride), in, bytes));
  LOCKSTEP_RETURN_IF_ERROR(Exchange(channel, messages));
  return ToStatus(library_,
                  library_.reduce(channel.stream, op, dtype, size(), count, channel.scratch.get(), stride, out),
                  "reduce");
}

Status NcclCommunicator::ReduceParts(Channel& channel, ReduceOp op, DType dtype, std::span<const int64_t> counts,
                                     const void* in, void* own) {
  const int64_t width = DTypeSize(dtype), bytes = counts[rank()] * width, stride = Aligned(bytes);
  const std::vector<int64_t> offsets = Offsets(counts);
  std::vector<Message> messages;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    messages.push_back({r, At(in, offsets[r] * width), nullptr, counts[r] * width});
    messages.push_back({r, nullptr, At(channel.scratch.get(), r * stride), bytes});
  }
  LOCKSTEP_RETURN_IF_ERROR(
      Copy(channel, At(channel.scratch.get(), rank() * stride), At(in, offsets[rank()] * width), bytes));
  LOCKSTEP_RETURN_IF_ERROR(Exchange(channel, messages));
  if (bytes == 0) return OkStatus();
  return ToStatus(
      library_, library_.reduce(channel.stream, op, dtype, size(), counts[rank()], channel.scratch.get(), stride, own),
      "reduce");
}

// data: [sum(counts)] items of `width` bytes, of which this rank has its part.
Status NcclCommunicator::GatherParts(Channel& channel, std::span<const int64_t> counts, int64_t width, void* data) {
  const std::vector<int64_t> offsets = Offsets(counts);
  const void* const own = At(data, offsets[rank()] * width);
  std::vector<Message> messages;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    messages.push_back({r, own, nullptr, counts[rank()] * width});
    messages.push_back({r, nullptr, At(data, offsets[r] * width), counts[r] * width});
  }
  return Exchange(channel, messages);
}

Result<Ticket> NcclCommunicator::AllReduce(std::string_view name, ReduceOp op, DType dtype, int64_t count,
                                           const void* in, void* out, Stream after) {
  LOCKSTEP_RETURN_IF_ERROR(CheckReduction("allreduce", name, op, dtype).status());
  LOCKSTEP_RETURN_IF_ERROR(CheckAllReduce(name, count, in, out));
  const int64_t width = DTypeSize(dtype), bytes = count * width;
  const std::vector<int64_t> shares = SharesOf(count, width);
  const bool is_small = bytes <= kSmallBytes, is_native = IsNative(dtype), is_alone = size() == 1 && !is_native;
  const int64_t scratch = is_native || is_alone ? 0 : is_small ? size() * Aligned(bytes) : PartsBytes(shares, width);
  const Call call = {.kind = CallKind::kAllReduce, .name = name, .dtype = dtype, .op = op, .count = count};
  LOCKSTEP_ASSIGN_OR_RETURN(Turn turn, Begin(call, {}, scratch, after));
  Channel& channel = *turn.channel;
  if (count == 0) return End(std::move(turn), OkStatus());
  if (is_alone) return End(std::move(turn), Copy(channel, out, in, bytes));
  if (is_native) {
    return End(std::move(turn), Enqueue(channel, [&](nccl::Comm comm) {
                 return api_->AllReduce(in, out, static_cast<size_t>(count), nccl::TypeOf(dtype), nccl::OpOf(op), comm,
                                        channel.stream);
               }));
  }
  if (is_small) return End(std::move(turn), ReduceSmall(channel, op, dtype, count, in, out));
  Status status = ReduceParts(channel, op, dtype, shares, in, At(out, Offsets(shares)[rank()] * width));
  if (status.ok()) status = GatherParts(channel, shares, width, out);
  return End(std::move(turn), status);
}

Result<Ticket> NcclCommunicator::ReduceScatter(std::string_view name, ReduceOp op, DType dtype,
                                               std::span<const int64_t> counts, const void* in, void* out,
                                               Stream after) {
  LOCKSTEP_RETURN_IF_ERROR(CheckReduction("reducescatter", name, op, dtype).status());
  const int64_t width = DTypeSize(dtype);
  LOCKSTEP_RETURN_IF_ERROR(CheckCounts("reducescatter", name, size(), counts, width, in));
  LOCKSTEP_RETURN_IF_ERROR(CheckReduceScatter(name, counts[rank()], out));
  const bool are_equal = std::all_of(counts.begin(), counts.end(), [&](int64_t count) { return count == counts[0]; });
  const bool is_native = IsNative(dtype) && are_equal, is_alone = size() == 1 && !is_native;
  const Call call = {.kind = CallKind::kReduceScatter, .name = name, .dtype = dtype, .op = op, .counts = counts};
  LOCKSTEP_ASSIGN_OR_RETURN(Turn turn, Begin(call, {}, is_native || is_alone ? 0 : PartsBytes(counts, width), after));
  Channel& channel = *turn.channel;
  if (is_alone) return End(std::move(turn), Copy(channel, out, in, counts[0] * width));
  if (!is_native) return End(std::move(turn), ReduceParts(channel, op, dtype, counts, in, out));
  if (counts[0] == 0) return End(std::move(turn), OkStatus());
  return End(std::move(turn), Enqueue(channel, [&](nccl::Comm comm) {
               return api_->ReduceScatter(in, out, static_cast<size_t>(counts[0]), nccl::TypeOf(dtype), nccl::OpOf(op),
                                          comm, channel.stream);
             }));
}

Result<Ticket> NcclCommunicator::Broadcast(std::string_view name, int root, int64_t bytes, void* data, Stream after) {
  LOCKSTEP_RETURN_IF_ERROR(CheckBroadcast(name, size(), root, bytes, data));
  const Call call = {.kind = CallKind::kBroadcast, .name = name, .root = root, .count = bytes};
  LOCKSTEP_ASSIGN_OR_RETURN(Turn turn, Begin(call, {}, 0, after));
  Channel& channel = *turn.channel;
  if (bytes == 0 || size() == 1) return End(std::move(turn), OkStatus());
  return End(std::move(turn), Enqueue(channel, [&](nccl::Comm comm) {
               return api_->Broadcast(data, data, static_cast<size_t>(bytes), nccl::Type::kUInt8, root, comm,
                                      channel.stream);
             }));
}

// turn.values: [R], whether each rank has memory for what it receives.
Status NcclCommunicator::MoveItems(Turn& turn, int64_t item_bytes, std::span<const int64_t> send_offsets,
                                   std::span<const int64_t> sends, std::span<const int64_t> receives, const void* in,
                                   void* out) {
  const std::vector<int64_t> receive_offsets = Offsets(receives);
  std::vector<Message> messages;
  for (int r = 0; r < size(); ++r) {
    const void* const from = At(in, send_offsets[r] * item_bytes);
    void* const to = At(out, receive_offsets[r] * item_bytes);
    if (r == rank()) {
      if (out != nullptr) LOCKSTEP_RETURN_IF_ERROR(Copy(*turn.channel, to, from, sends[r] * item_bytes));
      continue;
    }
    if (turn.values[r] != 0) messages.push_back({r, from, nullptr, sends[r] * item_bytes});
    if (out != nullptr) messages.push_back({r, nullptr, to, receives[r] * item_bytes});
  }
  return Exchange(*turn.channel, messages);
}

Result<Ticket> NcclCommunicator::AllGatherV(std::string_view name, Item item, std::span<const int64_t> counts,
                                            const void* in, void* out, Stream after) {
  LOCKSTEP_RETURN_IF_ERROR(CheckWidth("allgather", name, item));
  LOCKSTEP_RETURN_IF_ERROR(CheckCounts("allgather", name, size(), counts, 0, nullptr));
  LOCKSTEP_RETURN_IF_ERROR(CheckAllGather(name, item, counts[rank()], in));
  const int64_t wants = out != nullptr || SumOf(counts) * item.bytes() == 0 ? 1 : 0;
  LOCKSTEP_ASSIGN_OR_RETURN(Turn turn,
                            Begin(ExchangeCall(CallKind::kAllGatherV, name, item), std::span(&wants, 1), 0, after));
  const std::vector<int64_t> offsets(size(), 0), sends(size(), counts[rank()]);
  const Status status = MoveItems(turn, item.bytes(), offsets, sends, counts, in, out);
  return End(std::move(turn), status);
}

Result<Ticket> NcclCommunicator::AllToAllV(std::string_view name, Item item, std::span<const int64_t> send_counts,
                                           std::span<const int64_t> receive_counts, const void* in, void* out,
                                           Stream after) {
  LOCKSTEP_RETURN_IF_ERROR(CheckAllToAll(name, item, size(), send_counts, in));
  LOCKSTEP_RETURN_IF_ERROR(CheckCounts("alltoall", name, size(), receive_counts, 0, nullptr));
  const int64_t wants = out != nullptr || SumOf(receive_counts) * item.bytes() == 0 ? 1 : 0;
  LOCKSTEP_ASSIGN_OR_RETURN(Turn turn,
                            Begin(ExchangeCall(CallKind::kAllToAllV, name, item), std::span(&wants, 1), 0, after));
  const Status status = MoveItems(turn, item.bytes(), Offsets(send_counts), send_counts, receive_counts, in, out);
  return End(std::move(turn), status);
}

}  // namespace lockstep::device
