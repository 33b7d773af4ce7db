// One exchange for any number of tables. What a collective costs before its first byte is about the same whether it
// carries one table or 26, and a table's share for one rank is mostly a few kilobytes: so messages are joined, and the
// two copies that this takes are cheaper than the waits that it saves. A single table has nothing to join and travels
// as it is.
//
// Packing walks the ranks and, for each, the blocks (ForEachPiece). The same walk over `recv` instead of `send` finds
// the pieces on the other side, as both sides see the same counts from their own end.
#include "core/sharding/exchange.h"

#include <string>
#include <vector>

namespace lockstep {
namespace {

// Small messages are cheaper to copy than to allocate in shared memory, where a lock and a search for a free range are
// due; the communicator copies them through memory of its own.
constexpr int64_t kSharedFromBytes = 1 << 16;

// `out` as far as it was foreseen: what arrives must have the sizes that the route agreed on, or it would be written
// beyond the end of `out`.
Allocate Expect(std::span<const int64_t> expected, void* out) {
  return [expected, out](std::span<const int64_t> counts) -> Result<void*> {
    for (size_t r = 0; r < counts.size(); ++r) {
      if (counts[r] != expected[r]) {
        return Internal("rank " + std::to_string(r) + " sends " + std::to_string(counts[r]) +
                        " items where the route has " + std::to_string(expected[r]));
      }
    }
    return out;
  };
}

// Bytes that each rank gets of all blocks.
std::vector<int64_t> MessageBytes(std::span<const Block> blocks, std::span<const int64_t> Block::*counts, int size) {
  std::vector<int64_t> bytes(size, 0);
  for (const Block& block : blocks) {
    for (int r = 0; r < size; ++r) bytes[r] += (block.*counts)[r] * block.row_bytes;
  }
  return bytes;
}

int64_t Sum(std::span<const int64_t> values) {
  int64_t sum = 0;
  for (int64_t value : values) sum += value;
  return sum;
}

// Walks the messages of all ranks, each of which holds its rows of block 0, then those of block 1, and so on, and calls
// copy(message position, block, position in the block, bytes).
template <typename Copy>
void ForEachPiece(std::span<const Block> blocks, std::span<const int64_t> Block::*counts, int size, const Copy& copy) {
  std::vector<int64_t> offsets(blocks.size(), 0);
  int64_t position = 0;
  for (int r = 0; r < size; ++r) {
    for (size_t b = 0; b < blocks.size(); ++b) {
      const int64_t bytes = (blocks[b].*counts)[r] * blocks[b].row_bytes;
      if (bytes > 0) copy(position, blocks[b], offsets[b], bytes);
      position += bytes;
      offsets[b] += bytes;
    }
  }
}

}  // namespace

SendBuffer::SendBuffer(Communicator& communicator, int64_t bytes) {
  if (bytes >= kSharedFromBytes && communicator.size() > 1) shared_ = communicator.AllocateShared(bytes);
  if (!shared_) owned_ = std::make_unique_for_overwrite<char[]>(bytes);
  data_ = shared_ ? static_cast<char*>(shared_->data()) : owned_.get();
}

Status ExchangeBlocks(Communicator& communicator, std::string_view name, std::span<const Block> blocks) {
  const int size = communicator.size();
  if (blocks.size() == 1) {
    const Block& block = blocks[0];
    return communicator.AllToAllV(name, Item{DType::kUInt8, block.row_bytes}, block.send, block.in,
                                  Expect(block.recv, block.out));
  }

  const std::vector<int64_t> send_bytes = MessageBytes(blocks, &Block::send, size);
  const std::vector<int64_t> recv_bytes = MessageBytes(blocks, &Block::recv, size);
  SendBuffer packed(communicator, Sum(send_bytes));
  ForEachPiece(blocks, &Block::send, size, [&](int64_t position, const Block& block, int64_t offset, int64_t bytes) {
    CopyBytes(packed.data() + position, static_cast<const char*>(block.in) + offset, bytes);
  });
  const auto arrived = std::make_unique_for_overwrite<char[]>(Sum(recv_bytes));
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllToAllV(name, Item{DType::kUInt8, 1}, send_bytes, packed.data(),
                                                  Expect(recv_bytes, arrived.get())));
  ForEachPiece(blocks, &Block::recv, size, [&](int64_t position, const Block& block, int64_t offset, int64_t bytes) {
    CopyBytes(static_cast<char*>(block.out) + offset, arrived.get() + position, bytes);
  });
  return OkStatus();
}

}  // namespace lockstep
