#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

// Numbers distinct ids in the order in which they first appear, to drop the duplicates of a batch.
//
// It uses open addressing with linear probing over a power of two of slots, at most half full, so a probe rarely leaves
// its cache line. It never grows, because the number of ids of a batch is known. It takes 32 to 64 bytes for each id of
// its capacity, so it is made for each batch and not kept. Thread-compatible.
//
//   IdTable table(ids.size());
//   std::vector<int64_t> distinct;
//   for (int64_t id : ids) {
//     const int32_t number = table.FindOrInsert(id, distinct.size());
//     if (number == distinct.size()) distinct.push_back(id);
//   }
class IdTable {
 public:
  // Makes a table for up to `capacity` distinct ids. With more, a search would not end once all slots are taken.
  explicit IdTable(int64_t capacity)
      : slots_(std::bit_ceil(2 * static_cast<uint64_t>(capacity < 4 ? 4 : capacity)), Slot{0, kEmpty}),
        shift_(64 - std::countr_zero(slots_.size())) {}

  // Returns the number of `id`. A new id gets the number `next`; the caller counts.
  int32_t FindOrInsert(int64_t id, int32_t next) {
    return FindOrInsert(id, next, [](int32_t) { return true; });
  }

  // Does the same for objects of which several may have the same id, such as strings with their fingerprints.
  // same(number) tells whether the object with the id and this number is the wanted one.
  template <typename Same>
  int32_t FindOrInsert(int64_t id, int32_t next, const Same& same) {
    // Fibonacci hashing takes the product's high bits, which depend on all bits of the id.
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t i = static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15u >> shift_;; i = (i + 1) & mask) {
      Slot& slot = slots_[i];
      if (slot.number == kEmpty) {
        slot = {id, next};
        return next;
      }
      if (slot.id == id && same(slot.number)) return slot.number;
    }
  }

 private:
  // The value of `number` in a free slot. The mark is no id, because any int64 is an id, and no flag of its own,
  // because slots are searched in a hot loop.
  static constexpr int32_t kEmpty = -1;
  // 16 bytes: four to a cache line.
  struct Slot {
    int64_t id;
    int32_t number;
  };

  std::vector<Slot> slots_;
  const int shift_;  // shift of the hash: leaves the bits that number a slot
};

}  // namespace lockstep
