#pragma once

#include <cstdint>
#include <utility>

#include "core/base/status.h"

namespace lockstep {

// A block of zeroed memory from the system. A page takes memory when it is first touched, so a block may be made larger
// than its later use. From the first multiple of 2 MiB on, the system is asked for large pages. They save a page table
// walk at nearly every access to a large table. The first `small_bytes` use small pages, so that a small table does not
// take 2 MiB for each of its columns. Blocks of less than 64 KiB come from the heap.
//
// Owns its memory; movable. Thread-compatible.
class Pages {
 public:
  // An empty block: data() is null.
  Pages() = default;
  // Returns a block; RESOURCE_EXHAUSTED if the system has no memory left.
  static Result<Pages> Allocate(int64_t bytes, int64_t small_bytes = 0);

  Pages(Pages&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Pages();

  // Releases the memory of the pages that lie wholly within [begin, end); they are zero when they are touched again.
  // Has no effect on blocks from the heap.
  void Release(int64_t begin, int64_t end);

  // Aligned to 2 MiB if the block is at least that large, and always to 256 bytes.
  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  Pages(char* data, int64_t bytes) : data_(data), bytes_(bytes) {}

  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace lockstep
