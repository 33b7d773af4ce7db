#pragma once

#include <cstdint>
#include <vector>

#include "core/comm/named/named_request.h"

namespace lockstep {

// The next step of all R ranks: requests that share one exchange, or an error for all of them.
struct NamedBatch {
  static constexpr uint64_t kNoTicket = UINT64_MAX;

  // One request of all ranks.
  struct Entry {
    // The values that the ranks agree on. For each rank's own values (rows, splits), the lowest rank's. Its ticket has
    // no meaning.
    NamedRequest request;
    // By rank; kNoTicket for a rank that has not made this request. In a batch without an error, such a rank has joined
    // and takes part with zeros.
    std::vector<uint64_t> tickets;
    // The first dimension of each rank's tensor, [R]; 0 for ranks that have joined.
    std::vector<int64_t> rows;
    // For an all-to-all: the rows from each rank (outer) to each rank, [R][R]; otherwise empty.
    std::vector<std::vector<int64_t>> splits;
    // The rank that asked last, in the order in which the requests came to rank 0. For statistics; it is not compared.
    int last_rank = 0;

    bool operator==(const Entry& other) const;
  };

  std::vector<Entry> entries;
  // If it is not OK, nothing is exchanged, and all entries end with this error.
  Status error;

  bool operator==(const NamedBatch& other) const;
};

// Whether one exchange can serve both requests. How each kind treats several tensors is in named_exchange.cc.
bool CanTravelTogether(const NamedRequest& a, const NamedRequest& b);
// The approximate bytes of an entry's tensors on the rank with the most rows.
int64_t TensorBytes(const NamedBatch::Entry& entry);
// The approximate bytes of an entry in a message.
int64_t WireBytes(const NamedBatch::Entry& entry);

// Writes a batch to a message, and reads it. `ranks` is R. Reading marks the reader as damaged if the bytes are not a
// batch of R ranks, if a size is impossible, or if one exchange cannot serve all entries.
void Write(const NamedBatch& batch, ByteWriter& writer);
NamedBatch ReadNamedBatch(ByteReader& reader, int ranks);

// Whether an entry is what `rank` asked for, in all values that decide which of the rank's memory is read and written.
bool IsAnswerTo(const NamedBatch::Entry& entry, const NamedRequest& request, int rank);

}  // namespace lockstep
