#pragma once

#include <cstdint>

namespace lockstep {

// Where rows lie: row n at chunk n / 2^shift, stride bytes behind the row before it. One chunk for an ordinary
// contiguous variable, many for a slab; kernels take either. A value that owns nothing; rows are found without locks.
struct RowView {
  // Rows of chunks that each have 2^shift of them. `chunks` outlives the view.
  static RowView Chunked(char* const* chunks, int shift, int64_t stride) { return {nullptr, chunks, shift, stride}; }
  // Rows one behind the other.
  static RowView Contiguous(void* rows, int64_t stride) { return {static_cast<char*>(rows), nullptr, 0, stride}; }

  char* operator[](int64_t row) const {
    if (chunks == nullptr) return base + row * stride;
    return chunks[row >> shift] + (row & ((int64_t{1} << shift) - 1)) * stride;
  }

  char* base;
  char* const* chunks;
  int shift;
  int64_t stride;  // bytes
};

}  // namespace lockstep
