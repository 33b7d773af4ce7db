#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"

namespace lockstep {

// Calls memcpy, but allows null addresses for 0 bytes, as empty tensors have them.
inline void CopyBytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// The rows of one table in an exchange: `send[r]` of them go to rank r, and `recv[r]` come from it. It owns nothing;
// the memory that it points to must outlive the exchange.
struct Block {
  std::span<const int64_t> send;  // [R]
  std::span<const int64_t> recv;  // [R]
  int64_t row_bytes;
  const void* in;  // [sum(send), row_bytes], by destination
  void* out;       // [sum(recv), row_bytes], by source
};

// Exchanges the blocks of all tables at once. It is a collective: every rank passes the same number of blocks, in the
// same order, with the same row_bytes. A single block goes from `in` to `out` without a copy of ours. Several blocks
// are packed, so that a rank's rows of all tables are one message; this takes one copy on either side. The rows that a
// rank has for itself are copied once:
//
//   for rank 0: rows of block 0, rows of block 1, ...   for rank 1: rows of block 0, rows of block 1, ...   ...
//
// Both ends know all counts, so the message holds only rows. A rank that gets another number of rows from a peer than
// its `recv` says returns DATA_LOSS; its `out` is then undefined, and the communicator stays usable. Otherwise returns
// the communicator's errors (comm/collective/communicator.h).
Status ExchangeBlocks(Communicator& communicator, std::string_view name, std::span<const Block> blocks);

}  // namespace lockstep
