#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "core/comm/collective/arguments.h"
#include "core/comm/shm/copy.h"
#include "core/comm/shm/shm_communicator.h"
#include "core/comm/shm/staging.h"

// AllReduce and ReduceScatter. In every way, one rank reduces an element from the contributions of all in rank order,
// and it is copied from there. So all ranks, and all ways, give the same bits.
//
// In numbers, for R ranks and N bytes (docs/algorithms.md):
//
//   way       waits              a rank reads of peers      a rank writes for peers       who reduces
//   inline    1                  N                    N, in the flag's line         every rank, everything
//   slot      1                  N                    N                             every rank, everything
//   in place  2                  (R-1)/R N                  (R-1)/R N, into their outputs every rank its share
//   staged    2 + N / kChunk     2 (R-1)/R N                N                             every rank its share
//
// "In place" and "staged" are a reduce-scatter and an all-gather in one pass over the data: a share is reduced and,
// while it is in the first-level cache, written to all its places. ReduceScatter is the first half of each, with ranges
// given by the caller.
//
// Traps for changes. The way must follow only from `count` and the announcements, never from this rank's pointers: two
// ranks with different ways would wait for different steps. The order of sources is the order of ranks, even if this
// rank's contribution is read from private memory. A block's result is written after all of its sources were read,
// because the output may be one of the inputs.

namespace lockstep::shm {
namespace {

// The block size of a reduction whose result is needed in several places: small enough that the copies are made from
// the first-level cache. A multiple of every element's size.
constexpr int64_t kBlockBytes = 8 << 10;
struct alignas(kCacheLineBytes) Block {
  char bytes[kBlockBytes];
};

// The places of the contributions of an AllReduce or ReduceScatter: the payload of its announcement, as plain memory.
// It fills kInlineBytes.
struct Places {
  int64_t in;   // offset in the segment, or kPrivateMark
  int64_t out;  // the same; always kPrivateMark in ReduceScatter
  static constexpr int64_t kPrivateMark = -1;
  // Returns whether the peers can read the input, and write the output.
  bool is_in_shared() const { return in != kPrivateMark; }
  bool is_out_shared() const { return out != kPrivateMark; }
};
static_assert(sizeof(Places) == kInlineBytes);

// Returns the start of each rank's range, and the end of the last, in elements: [R + 1], the rest unused.
std::array<int64_t, kMaxRanks + 1> StartsOf(std::span<const int64_t> counts) {
  std::array<int64_t, kMaxRanks + 1> starts = {};
  std::partial_sum(counts.begin(), counts.end(), starts.begin() + 1);
  return starts;
}

// Returns a rank's announcement; each of its in and out may be private.
Places PlacesOf(const Announcement& announcement) {
  Places places;
  std::memcpy(&places, announcement.payload, sizeof(places));
  return places;
}

}  // namespace

// Checks, and chooses the way. Small data comes first: its time goes to the move of a few cache lines.
Status ShmCommunicator::AllReduce(std::string_view name, ReduceOp op, DType dtype, int64_t count, const void* in,
                                  void* out) {
  const int64_t bytes = count * DTypeSize(dtype);
  return Observe(CallKind::kAllReduce, name, bytes, bytes, [&]() -> Status {
    const ReduceFunction reduce = FindReduce(op, dtype);
    if (reduce == nullptr) [[unlikely]]
      return CheckReduction("allreduce", name, op, dtype).status();
    if (const Status status = CheckAllReduce(name, count, in, out); !status.ok()) [[unlikely]]
      return status;
    const Call call = {.kind = CallKind::kAllReduce, .name = name, .dtype = dtype, .op = op, .count = count};
    if (bytes <= kSlotBytes) return AllReduceInSlot(call, reduce, in, out);

    const Places places = {heap_->OffsetOf(in, bytes).value_or(Places::kPrivateMark),
                           heap_->OffsetOf(out, bytes).value_or(Places::kPrivateMark)};
    LOCKSTEP_RETURN_IF_ERROR(calls_.Begin(call, &places, sizeof(places)));
    // With one rank every operation is the identity, including a mean; except for bools, which become 0 or 1.
    if (size_ == 1) {
      if (dtype == DType::kBool)
        reduce(&in, 1, count, out);
      else
        std::memmove(out, in, static_cast<size_t>(bytes));
      return OkStatus();
    }
    // One private buffer on one rank is enough: then all go staged, because in place each rank writes to all outputs.
    for (int rank = 0; rank < size_; ++rank) {
      const Places theirs = PlacesOf(calls_.announcement(rank));
      if (!theirs.is_in_shared() || !theirs.is_out_shared()) {
        return AllReduceStaged(call, reduce, static_cast<const char*>(in), static_cast<char*>(out));
      }
    }
    return AllReduceInPlace(call, reduce);
  });
}

// Every rank reads all slots and reduces everything. This needs no second wait: this rank reads the slots before it
// begins its next call, and for that the peers fill the slots of the other parity.
Status ShmCommunicator::AllReduceInSlot(const Call& call, ReduceFunction reduce, const void* in, void* out) {
  const int64_t bytes = call.count * DTypeSize(call.dtype);
  const bool fits_inline = bytes <= kInlineBytes;
  if (!fits_inline) LOCKSTEP_RETURN_IF_ERROR(FillSlot(in, bytes));
  LOCKSTEP_RETURN_IF_ERROR(calls_.Begin(call, in, fits_inline ? bytes : 0));
  std::array<const void*, kMaxRanks> sources;
  for (int rank = 0; rank < size_; ++rank) {
    sources[rank] = fits_inline ? static_cast<const void*>(calls_.announcement(rank).payload) : calls_.slot(rank);
  }
  reduce(sources.data(), size_, call.count, out);
  return OkStatus();
}

ShmCommunicator::Range ShmCommunicator::ShareOf(int rank, int64_t count, int64_t element_bytes) const {
  // Shares begin at cache lines of the tensor, because two ranks that write to one line slow each other down. They
  // begin at every second line, because the hardware fetches lines in pairs. So the last shares of a short tensor may
  // be empty.
  const int64_t line = 2 * kCacheLineBytes / element_bytes;
  const int64_t share = ((count + size_ - 1) / size_ + line - 1) / line * line;
  const int64_t begin = std::min(count, rank * share);
  return {begin, std::min(count, begin + share) - begin};
}

// Each rank owns a share of the elements: it reads this share of all inputs, in rank order, and writes the sum to all
// outputs, its own and the peers'. No other rank reads or writes there, so only two orders are needed: at the start all
// inputs are complete (Begin), and at the end all outputs are (AwaitReaders).
Status ShmCommunicator::AllReduceInPlace(const Call& call, ReduceFunction reduce) {
  const int64_t width = DTypeSize(call.dtype);
  const Range share = ShareOf(rank_, call.count, width);
  std::array<const char*, kMaxRanks> ins;
  std::array<char*, kMaxRanks> outs;
  for (int rank = 0; rank < size_; ++rank) {
    const Places places = PlacesOf(calls_.announcement(rank));
    ins[rank] = segment_->At(places.in + share.begin * width);
    outs[rank] = segment_->At(places.out + share.begin * width);
  }
  std::array<const void*, kMaxRanks> sources;
  Block block;
  for (int64_t at = 0; at < share.count * width; at += kBlockBytes) {
    const int64_t bytes = std::min(kBlockBytes, share.count * width - at);
    for (int rank = 0; rank < size_; ++rank) sources[rank] = ins[rank] + at;
    reduce(sources.data(), size_, bytes / width, block.bytes);
    for (int rank = 0; rank < size_; ++rank) {
      // A buffer that was just read is in the cache, and is overwritten fastest there.
      if (outs[rank] == ins[rank])
        CopyCached(outs[rank] + at, block.bytes, bytes);
      else
        CopyStreaming(outs[rank] + at, block.bytes, bytes);
    }
  }
  return AwaitReaders();
}

// Chunks of kChunkBytes, each divided into shares like a tensor of its own. For chunk k:
//   produce   copies the other ranks' shares from this rank's input into its outbox, at their places in the chunk
//   combine   reduces this rank's share from the peers' outboxes and its own input, to its output, and to the start of
//             its result buffer
//   consume   copies the peers' shares from their result buffers to this rank's output
// `out` may be `in`: combine(k) and consume(k) write chunk k of the output after produce(k) has copied the input for
// the other ranks, and combine reads this rank's share before it writes it.
Status ShmCommunicator::AllReduceStaged(const Call& call, ReduceFunction reduce, const char* in, char* out) {
  const int64_t width = DTypeSize(call.dtype);
  const int64_t total = call.count * width;
  const int64_t per_chunk = kChunkBytes / width;
  const auto chunk_share = [&](int rank, int64_t chunk) {
    return ShareOf(rank, std::min(per_chunk, call.count - chunk * per_chunk), width);
  };
  // Each outbox is an image of the chunk, of which every peer reads its share; each result holds its rank's share.
  const auto produce = [&](int64_t chunk) {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      const Range share = chunk_share(rank, chunk);
      CopyStreaming(Outbox(rank_, chunk) + share.begin * width, in + (chunk * per_chunk + share.begin) * width,
                    share.count * width);
    }
  };
  const auto combine = [&](int64_t chunk) {
    const Range share = chunk_share(rank_, chunk);
    const int64_t offset = (chunk * per_chunk + share.begin) * width;
    std::array<const void*, kMaxRanks> sources;
    Block block;
    for (int64_t at = 0; at < share.count * width; at += kBlockBytes) {
      const int64_t bytes = std::min(kBlockBytes, share.count * width - at);
      for (int rank = 0; rank < size_; ++rank) {
        sources[rank] = rank == rank_ ? in + offset + at : Outbox(rank, chunk) + share.begin * width + at;
      }
      reduce(sources.data(), size_, bytes / width, block.bytes);
      CopyStreaming(ResultOf(rank_, chunk) + at, block.bytes, bytes);
      CopyToResult(out + offset + at, block.bytes, bytes, total);
    }
  };
  const auto consume = [&](int64_t chunk) {
    for (int i = 1; i < size_; ++i) {
      // Begins with the next rank, so that not all read from the same one at a time.
      const int rank = (rank_ + i) % size_;
      const Range share = chunk_share(rank, chunk);
      CopyToResult(out + (chunk * per_chunk + share.begin) * width, ResultOf(rank, chunk), share.count * width, total);
    }
  };
  return RunPipeline(*waiter_, (call.count + per_chunk - 1) / per_chunk, /*has_results=*/true, produce, combine,
                     consume);
}

// To go in place, only the inputs have to be shared: every rank writes only its own output.
Status ShmCommunicator::ReduceScatter(std::string_view name, ReduceOp op, DType dtype, std::span<const int64_t> counts,
                                      const void* in, void* out) {
  const int64_t own = counts.size() == static_cast<size_t>(size_) ? counts[rank_] : 0;
  const int64_t to_peers = SumOf(counts) * DTypeSize(dtype), from_peers = own * DTypeSize(dtype);
  return Observe(CallKind::kReduceScatter, name, to_peers, from_peers, [&]() -> Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const ReduceFunction reduce, CheckReduction("reducescatter", name, op, dtype));
    LOCKSTEP_RETURN_IF_ERROR(CheckCounts("reducescatter", name, size_, counts, DTypeSize(dtype), in));
    LOCKSTEP_RETURN_IF_ERROR(CheckReduceScatter(name, counts[rank_], out));
    const int64_t count = StartsOf(counts)[size_];
    const Call call = {
        .kind = CallKind::kReduceScatter, .name = name, .dtype = dtype, .op = op, .count = count, .counts = counts};
    const int64_t bytes = count * DTypeSize(dtype);
    if (bytes <= kSlotBytes) return ReduceScatterInSlot(call, reduce, in, out);

    const Places places = {heap_->OffsetOf(in, bytes).value_or(Places::kPrivateMark), Places::kPrivateMark};
    LOCKSTEP_RETURN_IF_ERROR(calls_.Begin(call, &places, sizeof(places)));
    for (int rank = 0; rank < size_; ++rank) {
      if (!PlacesOf(calls_.announcement(rank)).is_in_shared()) {
        return ReduceScatterStaged(call, reduce, static_cast<const char*>(in), static_cast<char*>(out));
      }
    }
    return ReduceScatterInPlace(call, reduce, out);
  });
}

// The whole input goes into the slot, including this rank's own part: it is small.
Status ShmCommunicator::ReduceScatterInSlot(const Call& call, ReduceFunction reduce, const void* in, void* out) {
  const int64_t width = DTypeSize(call.dtype);
  LOCKSTEP_RETURN_IF_ERROR(FillSlot(in, call.count * width));
  LOCKSTEP_RETURN_IF_ERROR(calls_.Begin(call, nullptr, 0));
  const int64_t begin = StartsOf(call.counts)[rank_];
  std::array<const void*, kMaxRanks> sources;
  for (int rank = 0; rank < size_; ++rank) sources[rank] = calls_.slot(rank) + begin * width;
  reduce(sources.data(), size_, call.counts[rank_], out);
  return OkStatus();
}

// Makes one pass over this rank's range of all inputs, straight into the output. The wait at the end protects the
// inputs.
Status ShmCommunicator::ReduceScatterInPlace(const Call& call, ReduceFunction reduce, void* out) {
  const int64_t begin = StartsOf(call.counts)[rank_] * DTypeSize(call.dtype);
  std::array<const void*, kMaxRanks> sources;
  for (int rank = 0; rank < size_; ++rank) {
    sources[rank] = segment_->At(PlacesOf(calls_.announcement(rank)).in + begin);
  }
  reduce(sources.data(), size_, call.counts[rank_], out);
  return AwaitReaders();
}

Status ShmCommunicator::ReduceScatterStaged(const Call& call, ReduceFunction reduce, const char* in, char* out) {
  const int64_t width = DTypeSize(call.dtype);
  const auto starts = StartsOf(call.counts);
  // An outbox is divided evenly among the ranks; chunk k of a rank's range is its k-th piece of this size, in elements.
  // Pieces are whole cache lines of the outbox, so that no two receivers read the same one. A rank with a short range
  // has empty pieces at the end, and continues to produce for the others.
  const int64_t piece = kChunkBytes / size_ / kCacheLineBytes * kCacheLineBytes / width;
  const auto piece_of = [&](int rank, int64_t chunk) {
    const int64_t begin = std::min(call.counts[rank], chunk * piece);
    return Range{begin, std::min(call.counts[rank], begin + piece) - begin};
  };
  const auto produce = [&](int64_t chunk) {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      const Range part = piece_of(rank, chunk);
      CopyStreaming(Outbox(rank_, chunk) + rank * piece * width, in + (starts[rank] + part.begin) * width,
                    part.count * width);
    }
  };
  const auto combine = [&](int64_t chunk) {
    const Range part = piece_of(rank_, chunk);
    std::array<const void*, kMaxRanks> sources;
    for (int rank = 0; rank < size_; ++rank) {
      sources[rank] =
          rank == rank_ ? in + (starts[rank] + part.begin) * width : Outbox(rank, chunk) + rank_ * piece * width;
    }
    if (part.count > 0) reduce(sources.data(), size_, part.count, out + part.begin * width);
  };
  const int64_t longest = *std::max_element(call.counts.begin(), call.counts.end());
  return RunPipeline(*waiter_, (longest + piece - 1) / piece, /*has_results=*/false, produce, combine, [](int64_t) {});
}

}  // namespace lockstep::shm
