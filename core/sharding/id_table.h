#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep {

// Numbers distinct ids in the order in which they first appear, to drop the duplicates of a batch.
//
// It uses open addressing with linear probing over a power of two of slots, at most half full. A slot has only the
// number of an id, 4 bytes; ids are compared in the list of distinct ones. The table never grows, because the number of
// ids of a batch is known. It takes 8 to 16 bytes for each id of its capacity, which fits a cache for usual batches,
// and 8 for each distinct one. It is made for each batch and not kept. Thread-compatible.
// ```cpp
// IdTable table(ids.size());
// for (int64_t id : ids) numbers.push_back(table.FindOrInsert(id));
// ... table.ids() has the distinct ids
// ```
class IdTable {
 public:
  // Makes a table for up to `capacity` distinct ids. With more, a search would not end once all slots are taken.
  explicit IdTable(int64_t capacity)
      : slots_(std::bit_ceil(2 * static_cast<uint64_t>(capacity < 4 ? 4 : capacity)), kEmpty),
        shift_(64 - std::countr_zero(slots_.size())) {}

  // Returns the number of `id`. A new id gets the next number, ids().size().
  int32_t FindOrInsert(int64_t id) {
    return FindOrInsert(id, [](int32_t) { return true; });
  }

  // Does the same for objects of which several may have the same id, such as strings with their fingerprints.
  // same(number) tells whether the object with the id and this number is the wanted one.
  template <typename Same>
  int32_t FindOrInsert(int64_t id, const Same& same) {
    // Fibonacci hashing takes the product's high bits, which depend on all bits of the id.
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t i = static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15u >> shift_;; i = (i + 1) & mask) {
      const int32_t number = slots_[i];
      if (number == kEmpty) {
        slots_[i] = static_cast<int32_t>(ids_.size());
        ids_.push_back(id);
        return slots_[i];
      }
      if (ids_[number] == id && same(number)) return number;
    }
  }

  // Returns the distinct ids by their numbers.
  const std::vector<int64_t>& ids() const& { return ids_; }
  std::vector<int64_t> ids() && { return std::move(ids_); }

 private:
  static constexpr int32_t kEmpty = -1;

  std::vector<int32_t> slots_;
  const int shift_;  // shift of the hash: leaves the bits that number a slot
  std::vector<int64_t> ids_;
};

// The same for rows of a table, which are below a known bound: the row itself is the slot. Thread-compatible.
//
// No step depends on whether a row is new. The processor can't foresee that, and would have to wait for each slot's
// memory before it continues with the next id.
class RowTable {
 public:
  // Returns whether this takes less time than an IdTable: 4 bytes for each row of the table are cleared first.
  static bool IsWorthwhile(int64_t rows, int64_t ids) { return rows <= 16 * ids; }

  // Makes a table for rows [0, rows) and at most `capacity` calls of FindOrInsert.
  RowTable(int64_t rows, int64_t capacity) : slots_(rows, kEmpty), ids_(capacity + 1) {}

  int32_t FindOrInsert(int64_t row) {
    const int32_t found = slots_[row];
    const bool is_new = found == kEmpty;
    const int32_t number = is_new ? count_ : found;
    slots_[row] = number;
    ids_[count_] = row;  // counts if the row is new
    count_ += is_new ? 1 : 0;
    return number;
  }

  // Returns the distinct rows by their numbers; the table is of no use afterwards.
  std::vector<int64_t> ids() && {
    ids_.resize(count_);
    return std::move(ids_);
  }

 private:
  static constexpr int32_t kEmpty = -1;

  std::vector<int32_t> slots_;
  std::vector<int64_t> ids_;
  int32_t count_ = 0;
};

}  // namespace lockstep
