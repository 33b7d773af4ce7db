#pragma once

#include <cstdint>

namespace lockstep {

// Where the rows of a table of `rows` rows live when R ranks share them. Two placements:
//
//   modulo      training: rank `id mod R` owns row `id`, as its local row `id div R`. Hot ids tend to be the low ones;
//               so they spread over the ranks.
//   contiguous  checkpoints: rank r holds the range ContiguousRange, and the ranges follow one another in rank order.
//   The
//               first `rows mod R` ranks hold one row more: what TensorFlow calls the "div" partitioning.
//
// A rank holds the same number of rows in both, LocalRows; it may be 0 where there are fewer rows than ranks.
//
// Ids are validated before they come here: 0 <= id < rows.

inline int Owner(int64_t id, int size) { return static_cast<int>(id % size); }

inline int64_t LocalRow(int64_t id, int size) { return id / size; }

inline int64_t GlobalRow(int64_t local_row, int rank, int size) { return local_row * size + rank; }

// How many rows of the table a rank owns: ceil((rows - rank) / size), never negative.
inline int64_t LocalRows(int64_t rows, int rank, int size) { return rows > rank ? (rows - rank + size - 1) / size : 0; }

// Rows [begin, end) of a table.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};

inline RowRange ContiguousRange(int64_t rows, int rank, int size) {
  const int64_t base = rows / size;
  const int64_t extra = rows % size;
  const int64_t begin = rank * base + (rank < extra ? rank : extra);
  return {begin, begin + base + (rank < extra ? 1 : 0)};
}

}  // namespace lockstep
