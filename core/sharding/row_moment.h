#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "core/sharding/placement.h"

namespace lockstep {

// A rank's rows of a table at one moment, read piece by piece while training changes them. Code that changes rows in
// place calls BeforeChange first, which copies them aside unless they have been read. So the moment itself costs
// nothing, each row is copied at most once, and only the rows that change before they are read take memory twice.
// (RowStore in core/embedding does the same for the rows of dynamic tables.)
//
//   RowMoment moment(rows, count, row_bytes);
//   training                          saving
//   moment.BeforeChange(numbers);     moment.Read({0, 4096}, out);
//   ... changes these rows            ... writes them
//
// Calls exclude each other; the variable's mutex does it.
class RowMoment {
 public:
  // rows: [count, row_bytes]; the memory outlives this object.
  RowMoment(const void* rows, int64_t count, int64_t row_bytes);

  // Copies those of the rows aside that have not been read. Numbers are below `count` and may repeat.
  void BeforeChange(std::span<const uint32_t> numbers);
  // Writes rows as they were at the moment to `out`, [rows.count(), row_bytes]. Each row is read at most once.
  void Read(RowRange rows, void* out);
  // Does the same for rows that will be read again.
  void Peek(RowRange rows, void* out) const;

  // Returns the memory of the rows that were copied aside.
  int64_t aside_bytes() const { return static_cast<int64_t>(blocks_.size()) * kBlockRows * row_bytes_; }

 private:
  static constexpr int64_t kBlockRows = 1024;
  static constexpr int64_t kWordBits = 64;
  // A block of so many places has a list of them, which is much smaller than an array for all of its rows.
  static constexpr size_t kMostListed = 64;

  // Where the rows of a block of the table are that were copied aside. One of both is in use.
  struct Places {
    struct Listed {
      uint32_t row;  // in the block
      uint32_t place;
    };
    std::vector<Listed> few;          // in no order
    std::unique_ptr<uint32_t[]> all;  // [kBlockRows]

    void Add(uint32_t row, uint32_t place);
    uint32_t Of(uint32_t row) const;  // it was added
  };

  const char* Row(int64_t number) const { return rows_ + number * row_bytes_; }
  char* Aside(uint32_t place) const { return blocks_[place / kBlockRows].get() + place % kBlockRows * row_bytes_; }
  uint32_t Place(int64_t row) const { return places_[row / kBlockRows].Of(static_cast<uint32_t>(row % kBlockRows)); }
  bool IsKept(int64_t row) const { return (kept_[row / kWordBits] >> (row % kWordBits) & 1) != 0; }
  void Keep(int64_t row) { kept_[row / kWordBits] |= uint64_t{1} << (row % kWordBits); }

  const char* rows_;
  int64_t row_bytes_;
  std::vector<uint64_t> kept_;  // a bit for each row: it was read or copied aside
  // For each block of the table. One hash table for all would stop training each time that it grows.
  std::vector<Places> places_;
  std::deque<std::unique_ptr<char[]>> blocks_;  // [kBlockRows, row_bytes] each
  uint32_t copied_ = 0;
};

}  // namespace lockstep
