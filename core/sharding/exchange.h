#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"

namespace lockstep {

// memcpy, for which the addresses of nothing may be null, as those of empty tensors are.
inline void CopyBytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// The rows of one table that travel in an exchange: `send[r]` of them go to rank r and `recv[r]` come from it. Owns
// nothing; all that it points to must outlive the exchange.
struct Block {
  std::span<const int64_t> send;  // [R]
  std::span<const int64_t> recv;  // [R]
  int64_t row_bytes;
  const void* in;  // [sum(send), row_bytes], by destination
  void* out;       // [sum(recv), row_bytes], by source
};

// Exchanges the blocks of all tables at once. A collective: every rank brings as many blocks, in the same order, with
// the same row_bytes. A single block goes from `in` to `out` without a copy of ours; several are packed so that one
// rank's rows of all tables are one message, at the price of one copy on either side. What a rank has for itself is
// copied once:
//
//   for rank 0: rows of block 0, rows of block 1, ...   for rank 1: rows of block 0, rows of block 1, ...   ...
//
// Both ends know all counts, so that the message holds rows and nothing else. A rank that gets another number of rows
// from a peer than its `recv` says returns INTERNAL, and `out` is unspecified then; the communicator stays usable.
// Otherwise the communicator's errors (comm/collective/communicator.h).
Status ExchangeBlocks(Communicator& communicator, std::string_view name, std::span<const Block> blocks);

}  // namespace lockstep
