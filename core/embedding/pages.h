#pragma once

#include <cstdint>
#include <utility>

#include "core/base/status.h"

namespace lockstep {

// A block of zeroed memory straight from the system. Memory is taken when a page of it is first touched, so a block may
// be made larger than what will be used of it; from the first multiple of 2 MiB on, the system is asked for large
// pages, which saves a walk through the page table at nearly every access to a large table. `small_bytes` at its
// beginning keep to small ones, so that a small table doesn't take 2 MiB for each of its columns. Blocks of less than
// 64 KiB come from the heap.
//
// Owns its memory; movable. Thread-compatible.
class Pages {
 public:
  // Nothing: data() is null.
  Pages() = default;
  // RESOURCE_EXHAUSTED where the system has none left.
  static Result<Pages> Allocate(int64_t bytes, int64_t small_bytes = 0);

  Pages(Pages&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Pages();

  // Gives back the memory of what lies wholly within [begin, end), which is zero when it is touched again. Nothing
  // happens to blocks from the heap.
  void Release(int64_t begin, int64_t end);

  // Aligned to 2 MiB where the block has as much, and always to 256 bytes.
  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  Pages(char* data, int64_t bytes) : data_(data), bytes_(bytes) {}

  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace lockstep
