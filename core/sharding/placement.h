#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/hash.h"

namespace lockstep {

// The placement of a table of `rows` rows on R ranks. There are two placements:
//
//   modulo      training: rank `id mod R` owns row `id`, as its local row `id div R`. Hot ids tend to be the low ones,
//               and so are spread over the ranks.
//   contiguous  checkpoints: rank r holds the range ContiguousRange, and the ranges follow one another in rank order.
//               The first `rows mod R` ranks hold one row more: what TensorFlow calls the "div" partitioning.
//
//   11 rows on 3 ranks    modulo        contiguous
//   rank 0                0 3 6 9       0 1 2 3
//   rank 1                1 4 7 10      4 5 6 7
//   rank 2                2 5 8         8 9 10
//
// A rank holds the same number of rows in both, LocalRows; it may be 0 if there are fewer rows than ranks. Both list a
// rank's rows in ascending order. All of it is arithmetic on the table's size: no rank asks another for the place of a
// row, and nothing has to be stored.
//
// Callers have checked the ids: 0 <= id < rows, and 0 <= rank < size.

// Returns the rank that owns row `id`, of `size` ranks.
inline int Owner(int64_t id, int size) { return static_cast<int>(id % size); }

// Returns the rank that owns a key of a dynamic table, any int64. The hash differs from the one by which the table's
// index spreads the keys that a rank owns.
inline int OwnerOfKey(int64_t key, int size) {
  return static_cast<int>(MixBits(static_cast<uint64_t>(key) ^ 0x6C6F636B73746570u) % static_cast<uint64_t>(size));
}

// Returns the rank that owns a string key, whatever the string's int64 key in the table. If strings share a fingerprint
// (a chance of 3 % with a billion strings), all but one of them have a key that is not their first fingerprint.
inline int OwnerOfString(std::string_view bytes, int size) {
  return OwnerOfKey(static_cast<int64_t>(Fingerprint(bytes)), size);
}

// Returns the row of an id on the rank that owns it.
inline int64_t LocalRow(int64_t id, int size) { return id / size; }

// Returns the id of a rank's local row; the inverse of Owner and LocalRow.
inline int64_t GlobalRow(int64_t local_row, int rank, int size) { return local_row * size + rank; }

// Returns the number of the table's rows that a rank owns: ceil((rows - rank) / size), never negative. It is also the
// local row of the rank's first id from `rows` on.
inline int64_t LocalRows(int64_t rows, int rank, int size) { return rows > rank ? (rows - rank + size - 1) / size : 0; }

// Rows [begin, end) of a table.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};

// Returns the rows of `rank` in the contiguous placement; an empty range at the end if there are fewer rows than ranks.
inline RowRange ContiguousRange(int64_t rows, int rank, int size) {
  const int64_t base = rows / size;
  const int64_t extra = rows % size;
  const int64_t begin = rank * base + (rank < extra ? rank : extra);
  return {begin, begin + base + (rank < extra ? 1 : 0)};
}

}  // namespace lockstep
