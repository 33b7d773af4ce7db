#include <algorithm>
#include <cstring>

#include "core/comm/collective/arguments.h"
#include "core/comm/shm/copy.h"
#include "core/comm/shm/shm_communicator.h"
#include "core/comm/shm/staging.h"

// Broadcast, AllGatherV and AllToAllV. Each sender's bytes take their own way, so ranks with shared and with private
// buffers mix freely. Data in a slot or in place is read from there; staged data comes through one pipeline that all
// ranks run together.
//
// The steps of each:
//
//   1. Locate chooses the way of this rank's bytes, and copies small data into the slot.
//   2. Begin announces that, and returns the ways of all others. Sizes come with it: AllGatherV's in the payload,
//      AllToAllV's in the call record. So the output is allocated here, before any data has moved.
//   3. Data that can be read at once (slots, buffers in place, this rank's own) is copied to the output.
//   4. If any data is staged, all ranks run the pipeline together, as long as the longest flow. Ranks without data to
//   send
//      or to receive take part too: the pipeline's waits are for all.
//   5. If any data was read in place, all wait until all have read it.
//
// Every rank computes from the announcements of all whether there is a step 4, how long it is, and whether there is a
// step
// 5. No rank may leave out a step, even if it has no use for it. Each byte is copied once (bytes in slots and staged
//    bytes twice: in and out).

namespace lockstep::shm {
namespace {

// Copies received bytes to `to`, which is null after a failed allocation.
void Deliver(void* to, const void* from, int64_t bytes) {
  if (to != nullptr) CopyToResult(to, from, bytes, bytes);
}

}  // namespace

// Tries the slot first, even for shared buffers: small data is cheaper to copy than the second wait of "in place"
// costs.
Result<ShmCommunicator::Source> ShmCommunicator::Locate(const void* data, int64_t bytes, int64_t count) {
  if (bytes <= kSlotBytes) {
    LOCKSTEP_RETURN_IF_ERROR(FillSlot(data, bytes));
    return Source{Source::kInSlotMark, count};
  }
  return Source{heap_->OffsetOf(data, bytes).value_or(Source::kStagedMark), count};
}

ShmCommunicator::Source ShmCommunicator::SourceOf(int rank) const {
  Source source;
  std::memcpy(&source, calls_.announcement(rank).payload, sizeof(source));
  return source;
}

const char* ShmCommunicator::DirectData(int rank) const {
  const Source source = SourceOf(rank);
  switch (source.way()) {
    case Way::kInSlot: return calls_.slot(rank);
    case Way::kInPlace: return segment_->At(source.offset);
    case Way::kStaged: break;
  }
  return nullptr;
}

bool ShmCommunicator::AnyInPlace() const {
  for (int rank = 0; rank < size_; ++rank) {
    if (SourceOf(rank).way() == Way::kInPlace) return true;
  }
  return false;
}

Status ShmCommunicator::AwaitReaders() {
  waiter_->Announce();
  return waiter_->WaitForAll(waiter_->announced());
}

// Flows of one outbox do not overlap in it: a single flow has the whole chunk; with one flow for each receiver, each
// has a piece.
Status ShmCommunicator::Stream(int64_t longest_flow, int64_t piece_bytes, const std::vector<Flow>& out,
                               const std::vector<Flow>& in) {
  const auto produce = [&](int64_t chunk) {
    const int64_t begin = chunk * piece_bytes;
    for (const Flow& flow : out) {
      const int64_t bytes = std::min(piece_bytes, flow.bytes - begin);
      if (bytes > 0) CopyStreaming(Outbox(rank_, chunk) + flow.at, flow.data + begin, bytes);
    }
  };
  const auto combine = [&](int64_t chunk) {
    const int64_t begin = chunk * piece_bytes;
    for (const Flow& flow : in) {
      const int64_t bytes = std::min(piece_bytes, flow.bytes - begin);
      if (bytes <= 0 || flow.data == nullptr) continue;
      CopyToResult(flow.data + begin, Outbox(flow.rank, chunk) + flow.at, bytes, flow.bytes);
    }
  };
  const int64_t chunks = (longest_flow + piece_bytes - 1) / piece_bytes;
  return RunPipeline(*waiter_, chunks, /*has_results=*/false, produce, combine, [](int64_t) {});
}

// Only the root has a source. The others announce an empty slot, so they count neither as staged nor as in place.
Status ShmCommunicator::Broadcast(std::string_view name, int root, int64_t bytes, void* data) {
  const bool sends = rank_ == root;
  return Observe(CallKind::kBroadcast, name, sends ? bytes : 0, sends ? 0 : bytes, [&]() -> Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckBroadcast(name, size_, root, bytes, data));
    const Call call = {.kind = CallKind::kBroadcast, .name = name, .root = root, .count = bytes};
    Source source = {Source::kInSlotMark, 0};
    if (rank_ == root) {
      LOCKSTEP_ASSIGN_OR_RETURN(source, Locate(data, bytes, 0));
    }
    LOCKSTEP_RETURN_IF_ERROR(calls_.Begin(call, &source, sizeof(source)));
    if (const char* direct = DirectData(root)) {
      if (rank_ != root) Deliver(data, direct, bytes);
    } else if (size_ > 1) {
      const std::vector<Flow> flow = {{root, static_cast<char*>(data), bytes, 0}};
      LOCKSTEP_RETURN_IF_ERROR(rank_ == root ? Stream(bytes, kChunkBytes, flow, {})
                                             : Stream(bytes, kChunkBytes, {}, flow));
    }
    return AnyInPlace() ? AwaitReaders() : OkStatus();
  });
}

// All peers read a staged contribution from the same outbox: the sender copies it once, for any R.
Status ShmCommunicator::AllGatherV(std::string_view name, Item item, int64_t count, const void* in,
                                   const Allocate& allocate) {
  ReceivedBytes from_peers(allocate, rank_, item);
  return Observe(CallKind::kAllGatherV, name, count * item.bytes(), from_peers.bytes(), [&]() -> Status {
    return AllGatherAs({.kind = CallKind::kAllGatherV,
                        .name = name,
                        .dtype = item.dtype,
                        .width = item.width,
                        .count = count,
                        .count_agrees = false},
                       item, count, in, from_peers.Counting());
  });
}

Status ShmCommunicator::AllGatherAs(const Call& call, Item item, int64_t count, const void* in,
                                    const Allocate& allocate) {
  LOCKSTEP_RETURN_IF_ERROR(CheckAllGather(call.name, item, count, in));
  LOCKSTEP_ASSIGN_OR_RETURN(const Source source, Locate(in, count * item.bytes(), count));
  LOCKSTEP_RETURN_IF_ERROR(calls_.Begin(call, &source, sizeof(source)));

  std::array<int64_t, kMaxRanks> counts;
  for (int rank = 0; rank < size_; ++rank) counts[rank] = SourceOf(rank).count;
  const Received received = AllocateFor("allgather", call.name, std::span(counts).first(size_), item.bytes(), allocate);
  std::vector<Flow> incoming;
  int64_t longest = 0;
  char* to = received.data;
  for (int rank = 0; rank < size_; ++rank) {
    const int64_t bytes = counts[rank] * item.bytes();
    // This rank's own items are always copied straight from `in`.
    const char* direct = rank == rank_ ? static_cast<const char*>(in) : DirectData(rank);
    // The pipeline is as long as the longest staged contribution, including this rank's: all ranks compute the same
    // length.
    if (DirectData(rank) == nullptr) longest = std::max(longest, bytes);
    if (direct != nullptr)
      Deliver(to, direct, bytes);
    else if (rank != rank_)
      incoming.push_back({rank, to, bytes, 0});
    if (to != nullptr) to += bytes;
  }
  if (longest > 0 && size_ > 1) {
    std::vector<Flow> outgoing;
    if (source.way() == Way::kStaged) {
      outgoing.push_back({rank_, static_cast<char*>(const_cast<void*>(in)), count * item.bytes(), 0});
    }
    LOCKSTEP_RETURN_IF_ERROR(Stream(longest, kChunkBytes, outgoing, incoming));
  }
  if (AnyInPlace()) LOCKSTEP_RETURN_IF_ERROR(AwaitReaders());
  return received.status;
}

// One outbox serves all receivers: it is divided into R pieces, one for each. Every rank reads the counts of all others
// in their call records. So it knows where its items begin in a slot or a buffer in place (items for lower ranks come
// first), and the length of the longest flow between any two ranks.
Status ShmCommunicator::AllToAllV(std::string_view name, Item item, std::span<const int64_t> send_counts,
                                  const void* in, const Allocate& allocate) {
  const int64_t own = send_counts.size() == static_cast<size_t>(size_) ? send_counts[rank_] : 0;
  const int64_t to_peers = (SumOf(send_counts) - own) * item.bytes();
  ReceivedBytes from_peers(allocate, rank_, item);
  return Observe(CallKind::kAllToAllV, name, to_peers, from_peers.bytes(), [&]() -> Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckAllToAll(name, item, size_, send_counts, in));
    const int64_t width = item.bytes();
    const Call call = {.kind = CallKind::kAllToAllV,
                       .name = name,
                       .dtype = item.dtype,
                       .width = item.width,
                       .counts = send_counts,
                       .count_agrees = false};
    LOCKSTEP_ASSIGN_OR_RETURN(const Source source, Locate(in, SumOf(send_counts) * width, 0));
    LOCKSTEP_RETURN_IF_ERROR(calls_.Begin(call, &source, sizeof(source)));

    std::array<int64_t, kMaxRanks> counts;
    for (int rank = 0; rank < size_; ++rank) counts[rank] = calls_.record(rank).counts[rank_];
    const Received received =
        AllocateFor("alltoall", name, std::span(counts).first(size_), width, from_peers.Counting());
    const int64_t piece = kChunkBytes / size_ / kCacheLineBytes * kCacheLineBytes;
    std::vector<Flow> incoming, outgoing;
    int64_t longest = 0;
    char* to = received.data;
    for (int rank = 0; rank < size_; ++rank) {
      const std::span<const int64_t> theirs(calls_.record(rank).counts, static_cast<size_t>(size_));
      const char* data = rank == rank_ ? static_cast<const char*>(in) : DirectData(rank);
      const int64_t bytes = counts[rank] * width;
      if (data != nullptr)
        Deliver(to, data + SumOf(theirs.first(rank_)) * width, bytes);
      else if (rank != rank_)
        incoming.push_back({rank, to, bytes, rank_ * piece});
      if (to != nullptr) to += bytes;
      // The flows of all staged senders count for the length, not only those to this rank. A rank sends nothing to
      // itself.
      if (SourceOf(rank).way() != Way::kStaged) continue;
      for (int to_rank = 0; to_rank < size_; ++to_rank) {
        if (to_rank == rank) continue;
        longest = std::max(longest, theirs[to_rank] * width);
        if (rank != rank_) continue;
        char* from = static_cast<char*>(const_cast<void*>(in)) + SumOf(theirs.first(to_rank)) * width;
        outgoing.push_back({to_rank, from, theirs[to_rank] * width, to_rank * piece});
      }
    }
    if (longest > 0) LOCKSTEP_RETURN_IF_ERROR(Stream(longest, piece, outgoing, incoming));
    if (AnyInPlace()) LOCKSTEP_RETURN_IF_ERROR(AwaitReaders());
    return received.status;
  });
}

}  // namespace lockstep::shm
