#include <algorithm>
#include <cstring>

#include "core/comm/collective/arguments.h"
#include "core/comm/gloo/gloo_communicator.h"

// AllReduce and ReduceScatter. In every way, an element is reduced from the contributions of all in the order of their
// indices, and copied from there. So all ranks, and all ways, give the same bits.
//
// In numbers, for n ranks and N bytes:
//
//   way               message delays      a rank sends        who reduces
//   beside the heads  1                   (n-1) N             every rank, everything
//   by messages       2                   2 (n-1)/n N         every rank its share
//   by memory         4, and the data     2 (n-1)/n N         every rank its share
//
// By memory, pieces of a share are sent while the piece before is reduced.

namespace lockstep::gloo {
namespace {

// The most bytes that an AllReduce sends to all peers together beside the heads: for more, sending them costs more than
// a second message delay.
constexpr int64_t kMostBesideHeads = 64 << 10;
// A piece of a transfer by memory; a multiple of every element's size. It is small enough that the first one is reduced
// soon, and large enough that the cost of its messages does not matter.
constexpr int64_t kPieceBytes = int64_t{1} << 20;
// The most contributions that are being sent while one is reduced: if a rank does not get its core for a moment, the
// others continue. Between two hosts of one core each, 64 MiB took a fifth less time than with one; twice this number
// gained almost nothing.
constexpr int64_t kAhead = 16;

}  // namespace

Status GlooCommunicator::AllReduce(std::string_view name, ReduceOp op, DType dtype, int64_t count, const void* in,
                                   void* out) {
  return AllReduceAs({.kind = CallKind::kAllReduce, .name = name, .dtype = dtype, .op = op, .count = count}, op, in,
                     out);
}

Status GlooCommunicator::AllReduceAs(const Call& call, ReduceOp op, const void* in, void* out) {
  LOCKSTEP_ASSIGN_OR_RETURN(const ReduceFunction reduce, CheckReduction("allreduce", call.name, op, call.dtype));
  LOCKSTEP_RETURN_IF_ERROR(CheckAllReduce(call.name, call.count, in, out));
  const int64_t width = DTypeSize(call.dtype);
  const int64_t bytes = call.count * width;
  const char* const from = static_cast<const char*>(in);
  char* const to = static_cast<char*>(out);
  if (bytes * (size_ - 1) <= kMostBesideHeads) return FoldError(ReduceBesideHeads(call, reduce, from, to));
  if (ShareOf(0, call.count, width).count * width <= Calls::kMostBytes) {
    return FoldError(AllReduceByMessages(call, reduce, from, to));
  }
  std::vector<Range> shares;
  for (int r = 0; r < size_; ++r) shares.push_back(ShareOf(r, call.count, width));
  LOCKSTEP_RETURN_IF_ERROR(Agree(call));
  return FoldError(ReduceByMemory(reduce, width, shares, from, to + shares[index_].begin * width, to));
}

Status GlooCommunicator::ReduceBesideHeads(const Call& call, ReduceFunction reduce, const char* in, char* out) {
  const int64_t bytes = call.count * DTypeSize(call.dtype);
  LOCKSTEP_RETURN_IF_ERROR(calls_.Begin(call, [&](int) { return Calls::Part{in, bytes, 0}; }));
  LOCKSTEP_RETURN_IF_ERROR(calls_.ExpectBytes([&](int) { return bytes; }));
  std::vector<const void*> sources;
  for (int r = 0; r < size_; ++r) sources.push_back(r == index_ ? in : calls_.data(r));
  reduce(sources.data(), size_, call.count, out);
  return calls_.End();
}

// The first message carries the shares to be reduced, the second one the reduced shares.
Status GlooCommunicator::AllReduceByMessages(const Call& call, ReduceFunction reduce, const char* in, char* out) {
  const int64_t width = DTypeSize(call.dtype);
  const auto part_of = [&](const char* base, int r) {
    const Range share = ShareOf(r, call.count, width);
    return Calls::Part{base + share.begin * width, share.count * width, 0};
  };
  LOCKSTEP_RETURN_IF_ERROR(calls_.Begin(call, [&](int peer) { return part_of(in, peer); }));
  const Range own = ShareOf(index_, call.count, width);
  LOCKSTEP_RETURN_IF_ERROR(calls_.ExpectBytes([&](int) { return own.count * width; }));
  std::vector<const void*> sources;
  for (int r = 0; r < size_; ++r) sources.push_back(r == index_ ? in + own.begin * width : calls_.data(r));
  reduce(sources.data(), size_, own.count, out + own.begin * width);
  LOCKSTEP_RETURN_IF_ERROR(calls_.ExchangeMore([&](int) { return part_of(out, index_); }));
  LOCKSTEP_RETURN_IF_ERROR(
      calls_.ExpectBytes([&](int peer) { return ShareOf(peer, call.count, width).count * width; }));
  LOCKSTEP_RETURN_IF_ERROR(ForPeers([&](int peer) {
    const Range share = ShareOf(peer, call.count, width);
    if (share.count > 0) std::memcpy(out + share.begin * width, calls_.data(peer), share.count * width);
    return OkStatus();
  }));
  return calls_.End();
}

// Transfers between two ranks, in this order and the same on both sides:
//
//   contribution 0, ..., contribution a, result 0, contribution a+1, result 1, ...          (a: `ahead`)
//
// In turn j a rank prepares the memory for contribution j and result j-a, sends contribution j, reduces piece j-a and
// sends its result. The memory of contribution j-a-1 is free by then. If `out` is `in`, a peer's result overwrites data
// that this rank has sent to that peer: the result exists because the peer has that data.
Status GlooCommunicator::ReduceByMemory(ReduceFunction reduce, int64_t width, const std::vector<Range>& shares,
                                        const char* in, char* own, char* out) {
  const int64_t piece = kPieceBytes / width;
  const auto piece_of = [&](int r, int64_t j) {
    const int64_t begin = std::min(shares[r].count, j * piece);
    return Range{begin, j < 0 ? 0 : std::min(shares[r].count, begin + piece) - begin};
  };
  int64_t longest = 0;
  for (const Range& share : shares) longest = std::max(longest, share.count);
  const int64_t pieces = (longest + piece - 1) / piece;
  const int64_t ahead = std::min(kAhead, pieces - 1);
  // The number of a peer's pieces that are kept.
  const int64_t depth = ahead + 1, stride = std::min(kPieceBytes, longest * width);
  scratch_.resize(static_cast<size_t>(size_ * depth * stride));
  const auto scratch = [&](int r, int64_t j) { return scratch_.data() + (r * depth + j % depth) * stride; };
  std::vector<const void*> sources(size_);
  std::vector<int64_t> sends(size_);
  const auto send = [&](int peer, const char* data, int64_t count) -> Status {
    if (count == 0) return OkStatus();
    ++sends[peer];
    return streams_->SendFrom(peer, data, count * width);
  };
  // There are more turns than pieces, to finish the last ones. Arrivals are awaited in the order in which their memory
  // was posted.
  for (int64_t j = 0; j <= pieces + 2 * ahead; ++j) {
    const Range mine = piece_of(index_, j), reduced = piece_of(index_, j - ahead);
    LOCKSTEP_RETURN_IF_ERROR(ForPeers([&](int peer) -> Status {
      if (j < pieces && mine.count > 0)
        LOCKSTEP_RETURN_IF_ERROR(streams_->Post(peer, scratch(peer, j), mine.count * width));
      const Range result = piece_of(peer, j - ahead);
      if (out != nullptr && result.count > 0) {
        LOCKSTEP_RETURN_IF_ERROR(
            streams_->Post(peer, out + (shares[peer].begin + result.begin) * width, result.count * width));
      }
      const Range theirs = piece_of(peer, j);
      return send(peer, in + (shares[peer].begin + theirs.begin) * width, theirs.count);
    }));
    LOCKSTEP_RETURN_IF_ERROR(ForPeers([&](int peer) -> Status {
      if (out != nullptr && piece_of(peer, j - 2 * ahead - 1).count > 0)
        LOCKSTEP_RETURN_IF_ERROR(streams_->AwaitPosted(peer));
      return reduced.count > 0 ? streams_->AwaitPosted(peer) : OkStatus();
    }));
    if (reduced.count == 0) continue;
    for (int r = 0; r < size_; ++r) {
      sources[r] = r == index_ ? in + (shares[r].begin + reduced.begin) * width : scratch(r, j - ahead);
    }
    char* const result = own + reduced.begin * width;
    reduce(sources.data(), size_, reduced.count, result);
    if (out != nullptr) LOCKSTEP_RETURN_IF_ERROR(ForPeers([&](int peer) { return send(peer, result, reduced.count); }));
  }
  return AwaitSends(sends);
}

Status GlooCommunicator::ReduceScatter(std::string_view name, ReduceOp op, DType dtype, std::span<const int64_t> counts,
                                       const void* in, void* out) {
  LOCKSTEP_ASSIGN_OR_RETURN(const ReduceFunction reduce, CheckReduction("reducescatter", name, op, dtype));
  LOCKSTEP_RETURN_IF_ERROR(CheckCounts("reducescatter", name, size_, counts, DTypeSize(dtype), in));
  LOCKSTEP_RETURN_IF_ERROR(CheckReduceScatter(name, counts[index_], out));
  const int64_t width = DTypeSize(dtype);
  const int64_t count = SumOf(counts);
  const Call call = {
      .kind = CallKind::kReduceScatter, .name = name, .dtype = dtype, .op = op, .count = count, .counts = counts};
  std::vector<Range> ranges;
  int64_t begin = 0;
  for (const int64_t n : counts) {
    ranges.push_back({begin, n});
    begin += n;
  }
  const char* const from = static_cast<const char*>(in);
  if (*std::max_element(counts.begin(), counts.end()) * width > Calls::kMostBytes) {
    LOCKSTEP_RETURN_IF_ERROR(Agree(call));
    return FoldError(ReduceByMemory(reduce, width, ranges, from, static_cast<char*>(out), /*out=*/nullptr));
  }
  LOCKSTEP_RETURN_IF_ERROR(calls_.Begin(call, [&](int peer) {
    return Calls::Part{from + ranges[peer].begin * width, counts[peer] * width, 0};
  }));
  LOCKSTEP_RETURN_IF_ERROR(FoldError(calls_.ExpectBytes([&](int) { return counts[index_] * width; })));
  std::vector<const void*> sources;
  for (int r = 0; r < size_; ++r) sources.push_back(r == index_ ? from + ranges[r].begin * width : calls_.data(r));
  if (counts[index_] > 0) reduce(sources.data(), size_, counts[index_], out);
  return FoldError(calls_.End());
}

}  // namespace lockstep::gloo
