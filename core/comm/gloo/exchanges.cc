#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "core/base/strings.h"
#include "core/comm/collective/arguments.h"
#include "core/comm/collective/arrivals.h"
#include "core/comm/gloo/gloo_communicator.h"

// Broadcast, AllGatherV and AllToAllV. Small data is sent with the heads, into the peer's window and from there to the
// output. Other data goes from memory to memory. The receiver prepares this memory when it knows the sizes, while the
// windows are still being sent.

namespace lockstep::gloo {
namespace {

// A piece of a Broadcast by memory that one rank passes on to the others.
constexpr int64_t kPieceBytes = int64_t{1} << 20;

}  // namespace

// The root sends small data to all. For large data it sends each other rank a share, and that rank passes its share on
// piece by piece. So the root sends the data only once.
Status GlooCommunicator::Broadcast(std::string_view name, int root, int64_t bytes, void* data) {
  LOCKSTEP_RETURN_IF_ERROR(CheckBroadcast(name, size_, root, bytes, data));
  const Call call = {.kind = CallKind::kBroadcast, .name = name, .root = root, .count = bytes};
  char* const memory = static_cast<char*>(data);
  const bool by_message = bytes <= Calls::kMostBytes;
  LOCKSTEP_RETURN_IF_ERROR(FoldError(calls_.Begin(call, [&](int) {
    return by_message && index_ == root ? Calls::Part{memory, bytes, 0} : Calls::Part{};
  })));
  const int64_t beside = by_message ? bytes : 0;
  LOCKSTEP_RETURN_IF_ERROR(FoldError(calls_.ExpectBytes([&](int peer) { return peer == root ? beside : 0; })));
  if (by_message && index_ != root && bytes > 0) std::memcpy(memory, calls_.data(root), static_cast<size_t>(bytes));
  LOCKSTEP_RETURN_IF_ERROR(FoldError(calls_.End()));
  return by_message || size_ == 1 ? OkStatus() : FoldError(BroadcastByMemory(root, bytes, memory));
}

// Shares belong to all ranks except the root. Between two ranks, pieces are sent in order: the root sends the pieces of
// the receiver's share, every other rank sends the pieces of its own share.
Status GlooCommunicator::BroadcastByMemory(int root, int64_t bytes, char* data) {
  const int64_t share = (bytes + size_ - 2) / (size_ - 1);
  const auto range_of = [&](int r, int64_t j) {
    const int64_t first = std::min(bytes, (r < root ? r : r - 1) * share);
    const int64_t end = std::min(bytes, first + share);
    const int64_t begin = std::min(end, first + j * kPieceBytes);
    return Range{begin, std::min(end, begin + kPieceBytes) - begin};
  };
  const int64_t pieces = (share + kPieceBytes - 1) / kPieceBytes;
  std::vector<int64_t> sends(size_);
  const auto send = [&](int peer, const Range& range) -> Status {
    if (range.count == 0) return OkStatus();
    ++sends[peer];
    return streams_->SendFrom(peer, data + range.begin, range.count);
  };
  const auto others = [&](const auto& work) {
    return ForPeers([&](int peer) { return peer == root ? OkStatus() : work(peer); });
  };
  const auto post = [&](int peer, const Range& range) {
    return range.count == 0 ? OkStatus() : streams_->Post(peer, data + range.begin, range.count);
  };
  if (index_ == root) {
    for (int64_t j = 0; j < pieces; ++j) {
      LOCKSTEP_RETURN_IF_ERROR(others([&](int peer) { return send(peer, range_of(peer, j)); }));
    }
  } else {
    for (int64_t j = 0; j < pieces; ++j) {
      LOCKSTEP_RETURN_IF_ERROR(post(root, range_of(index_, j)));
      LOCKSTEP_RETURN_IF_ERROR(others([&](int peer) { return post(peer, range_of(peer, j)); }));
    }
    for (int64_t j = 0; j < pieces; ++j) {
      const Range own = range_of(index_, j);
      if (own.count == 0) continue;
      LOCKSTEP_RETURN_IF_ERROR(streams_->AwaitPosted(root));
      LOCKSTEP_RETURN_IF_ERROR(others([&](int peer) { return send(peer, own); }));
    }
    LOCKSTEP_RETURN_IF_ERROR(others([&](int peer) -> Status {
      for (int64_t j = 0; j < pieces && range_of(peer, j).count > 0; ++j) {
        LOCKSTEP_RETURN_IF_ERROR(streams_->AwaitPosted(peer));
      }
      return OkStatus();
    }));
  }
  return AwaitSends(sends);
}

Status GlooCommunicator::AwaitSends(const std::vector<int64_t>& sends) {
  return ForPeers([&](int peer) -> Status {
    for (int64_t i = 0; i < sends[peer]; ++i) LOCKSTEP_RETURN_IF_ERROR(streams_->AwaitSent(peer));
    return OkStatus();
  });
}

Status GlooCommunicator::AllGatherV(std::string_view name, Item item, int64_t count, const void* in,
                                    const Allocate& allocate) {
  return AllGatherAs({.kind = CallKind::kAllGatherV,
                      .name = name,
                      .dtype = item.dtype,
                      .width = item.width,
                      .count = count,
                      .count_agrees = false},
                     item, count, in, allocate);
}

Status GlooCommunicator::AllGatherAs(const Call& call, Item item, int64_t count, const void* in,
                                     const Allocate& allocate) {
  LOCKSTEP_RETURN_IF_ERROR(CheckAllGather(call.name, item, count, in));
  const Calls::Part mine = {in, count * item.bytes(), count};
  return Exchange(call, item, std::vector<Calls::Part>(size_, mine), allocate);
}

Status GlooCommunicator::AllToAllV(std::string_view name, Item item, std::span<const int64_t> send_counts,
                                   const void* in, const Allocate& allocate) {
  LOCKSTEP_RETURN_IF_ERROR(CheckAllToAll(name, item, size_, send_counts, in));
  const Call call = {
      .kind = CallKind::kAllToAllV, .name = name, .dtype = item.dtype, .width = item.width, .count_agrees = false};
  std::vector<Calls::Part> parts;
  const char* from = static_cast<const char*>(in);
  for (const int64_t count : send_counts) {
    parts.push_back({from, count * item.bytes(), count});
    from += count * item.bytes();
  }
  return Exchange(call, item, parts, allocate);
}

Result<std::vector<int64_t>> GlooCommunicator::CountsOf(const std::vector<Calls::Part>& parts, int64_t width) {
  std::vector<int64_t> counts(size_);
  for (int r = 0; r < size_; ++r) counts[r] = r == index_ ? parts[r].count : calls_.head(r).count;
  const Status possible = CheckAnnounced(streams_->Operation(), counts, width, streams_->ranks());
  if (!possible.ok()) return streams_->Break(possible.WithPrefix(StrCat("rank ", streams_->ranks()[index_], ": ")));
  LOCKSTEP_RETURN_IF_ERROR(
      calls_.ExpectBytes([&](int peer) { return std::min(counts[peer] * width, Calls::kMostBytes); }));
  return counts;
}

// Memory of this function outlives Gloo's use of it: FoldError releases all of it before the function returns.
Status GlooCommunicator::Exchange(const Call& call, Item item, const std::vector<Calls::Part>& parts,
                                  const Allocate& allocate) {
  const int64_t width = item.bytes();
  Status status = calls_.Begin(call, [&](int peer) { return parts[peer]; });
  if (!status.ok()) return FoldError(status);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> counts, CountsOf(parts, width));
  const Received received = AllocateFor(CallKindName(call.kind), call.name, counts, width, allocate);
  if (streams_->broken()) return FoldError(received.status);
  // Without memory for the output, the peers can still send their data.
  std::unique_ptr<char[]> nowhere;
  if (received.data == nullptr) {
    const int64_t bytes = SumOf(counts) * width;
    nowhere.reset(new (std::nothrow) char[static_cast<size_t>(bytes)]);
    if (nowhere == nullptr) {
      return streams_->Break(ResourceExhausted(StrCat("rank ", streams_->ranks()[index_], ": no memory for ", bytes,
                                                      " bytes from the other ranks in ", streams_->Operation())));
    }
  }
  status = FoldError(MoveItems(parts, counts, width, received.data != nullptr ? received.data : nowhere.get()));
  return status.ok() ? received.status : status;
}

Status GlooCommunicator::MoveItems(const std::vector<Calls::Part>& parts, const std::vector<int64_t>& counts,
                                   int64_t width, char* memory) {
  std::vector<char*> places;
  for (int r = 0; r < size_; ++r) {
    places.push_back(memory);
    memory += counts[r] * width;
  }
  std::vector<int64_t> sends(size_), posts(size_);
  LOCKSTEP_RETURN_IF_ERROR(ForPeers([&](int peer) -> Status {
    const int64_t incoming = counts[peer] * width - Calls::kMostBytes;
    const int64_t outgoing = parts[peer].bytes - Calls::kMostBytes;
    posts[peer] = incoming > 0;
    sends[peer] = outgoing > 0;
    if (incoming > 0) LOCKSTEP_RETURN_IF_ERROR(streams_->Post(peer, places[peer] + Calls::kMostBytes, incoming));
    if (outgoing <= 0) return OkStatus();
    return streams_->SendFrom(peer, static_cast<const char*>(parts[peer].data) + Calls::kMostBytes, outgoing);
  }));
  const Calls::Part& own = parts[index_];
  if (own.bytes > 0) std::memmove(places[index_], own.data, static_cast<size_t>(own.bytes));
  LOCKSTEP_RETURN_IF_ERROR(ForPeers([&](int peer) {
    const int64_t bytes = calls_.head(peer).bytes;
    if (bytes > 0) std::memcpy(places[peer], calls_.data(peer), static_cast<size_t>(bytes));
    return OkStatus();
  }));
  LOCKSTEP_RETURN_IF_ERROR(calls_.End());
  LOCKSTEP_RETURN_IF_ERROR(
      ForPeers([&](int peer) { return posts[peer] > 0 ? streams_->AwaitPosted(peer) : OkStatus(); }));
  return AwaitSends(sends);
}

}  // namespace lockstep::gloo
