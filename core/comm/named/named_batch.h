#pragma once

#include <cstdint>
#include <vector>

#include "core/comm/named/named_request.h"

namespace lockstep {

// What all R ranks do next: requests that travel in one exchange, or an error for all of them.
struct NamedBatch {
  static constexpr uint64_t kNoTicket = UINT64_MAX;

  // One request of all ranks.
  struct Entry {
    // What the ranks agree on; of what is each rank's own (rows, splits), the lowest rank's. Its ticket means nothing.
    NamedRequest request;
    // By rank; kNoTicket of a rank that has not asked for it: in a batch without an error one that has joined, and
    // takes part with zeros.
    std::vector<uint64_t> tickets;
    // The first dimension of each rank's tensor, [R]; 0 of those that have joined.
    std::vector<int64_t> rows;
    // Of an all-to-all: rows from each rank (outer) to each rank, [R][R]; else empty.
    std::vector<std::vector<int64_t>> splits;

    bool operator==(const Entry& other) const;
  };

  std::vector<Entry> entries;
  // Not OK: nothing is exchanged, all entries end with this.
  Status error;

  bool operator==(const NamedBatch& other) const;
};

// Whether two requests can be done by one exchange. What each kind does with several tensors is in named_exchange.cc.
bool CanTravelTogether(const NamedRequest& a, const NamedRequest& b);
// Tensors of an entry, roughly: what the rank brings that has most rows.
int64_t TensorBytes(const NamedBatch::Entry& entry);
// What an entry takes in a message, roughly.
int64_t WireBytes(const NamedBatch::Entry& entry);

// A message, and back. `ranks`: R. Reading spoils the reader where what is there is no batch of R ranks: sizes that
// can't be, or entries that can't be done by one exchange.
void Write(const NamedBatch& batch, ByteWriter& writer);
NamedBatch ReadNamedBatch(ByteReader& reader, int ranks);

// Whether an entry is what `rank` asked for, in everything that says which of its memory is read and written.
bool IsAnswerTo(const NamedBatch::Entry& entry, const NamedRequest& request, int rank);

}  // namespace lockstep
