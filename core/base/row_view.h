#pragma once

#include <cstdint>

namespace lockstep {

// The addresses of rows: row n is in chunk n / 2^shift, `stride` bytes after the row before it. An ordinary contiguous
// variable is one chunk, a slab is many; kernels accept both. A value that owns nothing; rows are found without locks.
struct RowView {
  // Makes a view of chunks with 2^shift rows each. `chunks` outlives the view.
  static RowView Chunked(char* const* chunks, int shift, int64_t stride) { return {nullptr, chunks, shift, stride}; }
  // Makes a view of contiguous rows.
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
