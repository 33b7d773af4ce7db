#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

// Numbers distinct ids in the order in which they first appear: the table behind dropping the duplicates of a batch.
//
// Open addressing with linear probing over a power of two of slots, at most half full, so that a probe rarely leaves
// its cache line. It never grows: the number of ids of a batch is known. Thread-compatible.
class IdTable {
 public:
  // For up to `capacity` distinct ids, none of them negative.
  explicit IdTable(int64_t capacity)
      : slots_(std::bit_ceil(2 * static_cast<uint64_t>(capacity < 4 ? 4 : capacity)), Slot{kEmpty, 0}),
        shift_(64 - std::countr_zero(slots_.size())) {}

  // The number of `id`, which is `next` where the id is new.
  int32_t FindOrInsert(int64_t id, int32_t next) {
    // Fibonacci hashing takes the product's high bits, which depend on all bits of the id.
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t i = static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15u >> shift_;; i = (i + 1) & mask) {
      Slot& slot = slots_[i];
      if (slot.id == id) return slot.number;
      if (slot.id == kEmpty) {
        slot = {id, next};
        return next;
      }
    }
  }

 private:
  static constexpr int64_t kEmpty = -1;
  struct Slot {
    int64_t id;
    int32_t number;
  };

  std::vector<Slot> slots_;
  const int shift_;  // of the hash: leaves the bits that number a slot
};

}  // namespace lockstep
