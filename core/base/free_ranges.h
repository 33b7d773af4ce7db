#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

namespace lockstep {

// The free ranges of one piece of memory, for an allocator that keeps its list elsewhere than in that memory.
//
// First fit, from the lowest offset on; freed neighbours are joined. So used memory stays at the low end. A search
// walks over all free ranges, so there should be few of them. Thread-compatible.
class FreeRanges {
 public:
  // All of [begin, end) is free.
  FreeRanges(int64_t begin, int64_t end) : bytes_at_{{begin, end - begin}} {}

  // Takes `bytes`, 1 or more, out of the first range that is large enough. Returns their offset, or nothing.
  std::optional<int64_t> Take(int64_t bytes) {
    for (auto range = bytes_at_.begin(); range != bytes_at_.end(); ++range) {
      const auto [offset, size] = *range;
      if (size < bytes) continue;
      bytes_at_.erase(range);
      if (size > bytes) bytes_at_.emplace(offset + bytes, size - bytes);
      return offset;
    }
    return std::nullopt;
  }

  // Frees [offset, offset + bytes), which was taken. Joins it with the free range after it, then with the one before
  // it. Two ranges of the list never touch, so there is at most one of each.
  void Return(int64_t offset, int64_t bytes) {
    auto next = bytes_at_.lower_bound(offset);
    if (next != bytes_at_.end() && next->first == offset + bytes) {
      bytes += next->second;
      next = bytes_at_.erase(next);
    }
    if (next != bytes_at_.begin()) {
      const auto previous = std::prev(next);
      if (previous->first + previous->second == offset) {
        previous->second += bytes;
        return;
      }
    }
    bytes_at_.emplace(offset, bytes);
  }

  // Returns the number of free bytes, in any number of ranges.
  int64_t bytes() const {
    int64_t all = 0;
    for (const auto& [offset, size] : bytes_at_) all += size;
    return all;
  }

 private:
  std::map<int64_t, int64_t> bytes_at_;
};

}  // namespace lockstep
