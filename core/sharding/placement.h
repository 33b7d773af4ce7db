#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/hash.h"

namespace lockstep {

// Where the rows of a table of `rows` rows live when R ranks share them. Two placements:
//
//   modulo      training: rank `id mod R` owns row `id`, as its local row `id div R`. Hot ids tend to be the low ones;
//               so they spread over the ranks.
//   contiguous  checkpoints: rank r holds the range ContiguousRange, and the ranges follow one another in rank order.
//               The first `rows mod R` ranks hold one row more: what TensorFlow calls the "div" partitioning.
//
//   11 rows on 3 ranks    modulo        contiguous
//   rank 0                0 3 6 9       0 1 2 3
//   rank 1                1 4 7 10      4 5 6 7
//   rank 2                2 5 8         8 9 10
//
// A rank holds the same number of rows in both, LocalRows; it may be 0 where there are fewer rows than ranks. Both list
// a rank's rows in ascending order. All of it is arithmetic on the table's size: no rank asks another where a row is,
// and nothing has to be stored.
//
// Ids are validated before they come here: 0 <= id < rows, and 0 <= rank < size.

// The rank that owns row `id`, of `size` ranks.
inline int Owner(int64_t id, int size) { return static_cast<int>(id % size); }

// The rank that owns a key of a dynamic table, any int64. A hash of its own: the table's index spreads the keys that a
// rank owns by another one.
inline int OwnerOfKey(int64_t key, int size) {
  return static_cast<int>(MixBits(static_cast<uint64_t>(key) ^ 0x6C6F636B73746570u) % static_cast<uint64_t>(size));
}

// The rank that owns a string key, whatever key of the table it has there: of strings with one fingerprint (a chance of
// 3 % with a billion of them) all but one have a key that is not their first fingerprint.
inline int OwnerOfString(std::string_view bytes, int size) {
  return OwnerOfKey(static_cast<int64_t>(Fingerprint(bytes)), size);
}

// The row of an id on the rank that owns it.
inline int64_t LocalRow(int64_t id, int size) { return id / size; }

// The id of a rank's local row: undoes Owner and LocalRow.
inline int64_t GlobalRow(int64_t local_row, int rank, int size) { return local_row * size + rank; }

// How many rows of the table a rank owns: ceil((rows - rank) / size), never negative. So it is also the local row of
// the first of its ids from `rows` on.
inline int64_t LocalRows(int64_t rows, int rank, int size) { return rows > rank ? (rows - rank + size - 1) / size : 0; }

// Rows [begin, end) of a table.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};

// The rows of `rank` in the contiguous placement; empty, at the end, where there are fewer rows than ranks.
inline RowRange ContiguousRange(int64_t rows, int rank, int size) {
  const int64_t base = rows / size;
  const int64_t extra = rows % size;
  const int64_t begin = rank * base + (rank < extra ? rank : extra);
  return {begin, begin + base + (rank < extra ? 1 : 0)};
}

}  // namespace lockstep
