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
// BeforeChange excludes all other calls; the variable's mutex does it. One thread reads.
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
  static constexpr int64_t kGroupRows = 64;  // the bits of a word of kept_
  static constexpr uint32_t kNone = 0;

  // A row that was copied aside. The places of rows count from 1, in the order of the copies.
  struct Aside {
    uint32_t row;       // in its group
    uint32_t previous;  // the place of the row of the group that was copied before it, or kNone
  };
  struct Block {
    std::unique_ptr<char[]> rows;  // [kBlockRows, row_bytes]
    std::unique_ptr<Aside[]> aside;
  };

  const char* Row(int64_t number) const { return rows_ + number * row_bytes_; }
  char* RowAside(uint32_t place) const {
    return blocks_[(place - 1) / kBlockRows].rows.get() + (place - 1) % kBlockRows * row_bytes_;
  }
  Aside& AsideAt(uint32_t place) const { return blocks_[(place - 1) / kBlockRows].aside[(place - 1) % kBlockRows]; }
  bool IsKept(int64_t row) const { return (kept_[row / kGroupRows] >> (row % kGroupRows) & 1) != 0; }
  void Keep(int64_t row) { kept_[row / kGroupRows] |= uint64_t{1} << (row % kGroupRows); }

  const char* rows_;
  int64_t row_bytes_;
  std::vector<uint64_t> kept_;  // a bit for each row: it was read or copied aside
  // For each group of the table, the place of the row that was copied last. The rows of a group are a chain: whatever
  // grows as a whole (a hash table, an array for each group) makes one step of training much longer than the others.
  std::vector<uint32_t> last_;
  std::deque<Block> blocks_;
  uint32_t copied_ = 0;
};

}  // namespace lockstep
