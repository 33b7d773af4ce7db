#include "core/device/kernels.h"
#include "core/device/packs.cuh"

namespace lockstep::device {
namespace {

// The bytes of a piece that one block copies.
constexpr int64_t kChunkBytes = 32 << 10;

// A kernel's arguments hold 4 KiB, and so this many pieces. They need no memory of their own, and nothing has to live
// until the kernel runs.
constexpr int kBatch = 96;
struct Batch {
  int count;
  int first_chunk[kBatch + 1];  // [count + 1]: piece p has the chunks from first_chunk[p] up to first_chunk[p + 1]
  Piece pieces[kBatch];
};
static_assert(sizeof(Batch) <= 4096);

// Returns word `at` of the padded piece. A word in which the bytes end is put together from bytes.
template <typename Word>
__device__ Word WordOf(const Piece& piece, int64_t at) {
  const int64_t begin = at * static_cast<int64_t>(sizeof(Word));
  Word word = {};
  if (begin + static_cast<int64_t>(sizeof(Word)) <= piece.bytes) return static_cast<const Word*>(piece.from)[at];
  const auto* from = static_cast<const unsigned char*>(piece.from);
  auto* bytes = reinterpret_cast<unsigned char*>(&word);
  for (int64_t i = begin; i < piece.bytes; ++i) bytes[i - begin] = from[i];
  return word;
}

template <typename Word>
__device__ void CopyChunk(const Piece& piece, int64_t chunk) {
  constexpr int64_t kWord = sizeof(Word);
  const int64_t begin = chunk * kChunkBytes, end = min(begin + kChunkBytes, piece.padded_bytes);
#pragma unroll 4
  for (int64_t w = begin / kWord + threadIdx.x; w < end / kWord; w += blockDim.x) {
    static_cast<Word*>(piece.to)[w] = WordOf<Word>(piece, w);
  }
  const int64_t rest = end / kWord * kWord + threadIdx.x;  // fewer bytes than a word has
  if (rest < end) static_cast<unsigned char*>(piece.to)[rest] = WordOf<unsigned char>(piece, rest);
}

// Each block copies a chunk, in the widest words that both addresses allow.
__global__ void CopyPiecesKernel(Batch batch) {
  const int block = static_cast<int>(blockIdx.x);
  const int p = RangeOf(batch.first_chunk, batch.count, block);
  const Piece& piece = batch.pieces[p];
  const int64_t chunk = block - batch.first_chunk[p];
  const uint64_t alignment = reinterpret_cast<uint64_t>(piece.from) | reinterpret_cast<uint64_t>(piece.to);
  if (alignment % 16 == 0) {
    CopyChunk<Pack<uint32_t, 4>>(piece, chunk);
  } else if (alignment % 4 == 0) {
    CopyChunk<uint32_t>(piece, chunk);
  } else {
    CopyChunk<unsigned char>(piece, chunk);
  }
}

Error LaunchBatch(Stream stream, const Batch& batch) {
  if (batch.count == 0) return kSuccess;
  return Launch(Raw(stream), static_cast<unsigned>(batch.first_chunk[batch.count]), kThreads, 0, CopyPiecesKernel,
                batch);
}

}  // namespace

Error CopyPieces(Stream stream, const Piece* pieces, int64_t count) {
  Batch batch = {};
  for (int64_t p = 0; p < count; ++p) {
    const Piece& piece = pieces[p];
    if (piece.bytes < 0 || piece.padded_bytes < piece.bytes) return cudaErrorInvalidValue;
    if (piece.padded_bytes == 0) continue;  // a chunk has one piece
    const int64_t chunks = (piece.padded_bytes + kChunkBytes - 1) / kChunkBytes;
    if (batch.count == kBatch || batch.first_chunk[batch.count] + chunks > INT32_MAX) {
      if (const Error error = LaunchBatch(stream, batch); error != kSuccess) return error;
      batch = {};
    }
    batch.pieces[batch.count++] = piece;
    batch.first_chunk[batch.count] = batch.first_chunk[batch.count - 1] + static_cast<int>(chunks);
  }
  return LaunchBatch(stream, batch);
}

}  // namespace lockstep::device
