// One exchange for any number of tables. The fixed cost of a collective is about the same for one table as for 26, and
// a table's part for one rank is mostly a few kilobytes. So messages are joined: the two copies that this takes are
// cheaper than the waits that it saves. A single table has nothing to join and is sent without a copy.
//
// Packing walks through the peers and, for each peer, through the blocks (ForEachPiece). The same walk over `recv`
// instead of `send` finds the pieces on the receiver's side, because both sides know the same counts. The rows that a
// rank has for itself go from `in` to `out` and are in no message: with two ranks these are half of all rows.
#include "core/sharding/exchange.h"

#include <memory>
#include <string>
#include <vector>

#include "core/comm/collective/arrivals.h"
#include "core/comm/collective/send_buffer.h"

namespace lockstep {
namespace {

// Returns the bytes of all blocks that this rank receives from each rank, or sends to it; 0 for itself.
std::vector<int64_t> MessageBytes(std::span<const Block> blocks, std::span<const int64_t> Block::*counts,
                                  const Communicator& communicator) {
  std::vector<int64_t> bytes(communicator.size(), 0);
  for (const Block& block : blocks) {
    for (int r = 0; r < communicator.size(); ++r) {
      if (r != communicator.rank()) bytes[r] += (block.*counts)[r] * block.row_bytes;
    }
  }
  return bytes;
}

int64_t Sum(std::span<const int64_t> values) {
  int64_t sum = 0;
  for (int64_t value : values) sum += value;
  return sum;
}

// Walks through the messages of all peers. Each message holds the peer's rows of block 0, then of block 1, and so on.
// Calls copy(message position, block, position in the block, bytes).
template <typename Copy>
void ForEachPiece(std::span<const Block> blocks, std::span<const int64_t> Block::*counts,
                  const Communicator& communicator, const Copy& copy) {
  std::vector<int64_t> offsets(blocks.size(), 0);
  int64_t position = 0;
  for (int r = 0; r < communicator.size(); ++r) {
    for (size_t b = 0; b < blocks.size(); ++b) {
      const int64_t bytes = (blocks[b].*counts)[r] * blocks[b].row_bytes;
      if (r != communicator.rank()) {
        if (bytes > 0) copy(position, blocks[b], offsets[b], bytes);
        position += bytes;
      }
      offsets[b] += bytes;
    }
  }
}

// Copies the rows that rank `rank` has for itself; both counts must be equal.
Status CopyOwn(const Block& block, int rank) {
  if (block.send[rank] != block.recv[rank]) {
    return Internal("rank " + std::to_string(rank) + " has " + std::to_string(block.send[rank]) +
                    " rows for itself where the route has " + std::to_string(block.recv[rank]));
  }
  CopyBytes(static_cast<char*>(block.out) + Sum(block.recv.first(rank)) * block.row_bytes,
            static_cast<const char*>(block.in) + Sum(block.send.first(rank)) * block.row_bytes,
            block.send[rank] * block.row_bytes);
  return OkStatus();
}

}  // namespace

Status ExchangeBlocks(Communicator& communicator, std::string_view name, std::span<const Block> blocks) {
  if (blocks.size() == 1) {
    const Block& block = blocks[0];
    return communicator.AllToAllV(name, Item{DType::kUInt8, block.row_bytes}, block.send, block.in,
                                  Expecting(name, block.recv, block.out));
  }

  const std::vector<int64_t> send_bytes = MessageBytes(blocks, &Block::send, communicator);
  const std::vector<int64_t> recv_bytes = MessageBytes(blocks, &Block::recv, communicator);
  SendBuffer packed(communicator, Sum(send_bytes));
  const auto pack = [&](int64_t position, const Block& block, int64_t offset, int64_t bytes) {
    CopyBytes(packed.data() + position, static_cast<const char*>(block.in) + offset, bytes);
  };
  ForEachPiece(blocks, &Block::send, communicator, pack);
  const auto arrived = std::make_unique_for_overwrite<char[]>(Sum(recv_bytes));
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllToAllV(name, Item{DType::kUInt8, 1}, send_bytes, packed.data(),
                                                  Expecting(name, recv_bytes, arrived.get())));
  const auto unpack = [&](int64_t position, const Block& block, int64_t offset, int64_t bytes) {
    CopyBytes(static_cast<char*>(block.out) + offset, arrived.get() + position, bytes);
  };
  ForEachPiece(blocks, &Block::recv, communicator, unpack);
  for (const Block& block : blocks) LOCKSTEP_RETURN_IF_ERROR(CopyOwn(block, communicator.rank()));
  return OkStatus();
}

}  // namespace lockstep
