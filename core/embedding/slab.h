#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/embedding/optimizer/row_view.h"
#include "core/embedding/pages.h"

namespace lockstep {

// Rows that are numbered from 0 and lie in columns: weights, each optimizer slot, keys, counts. A row has the same
// number in all columns, and stays where it is from the moment it is taken until it is given back; numbers that were
// given back are taken again before new ones are made.
//
// A column is a list of chunks of 2^18 rows, made as rows are, which never move. Memory follows what is touched, a page
// at a time; so a chunk that is just begun costs nothing, and growth copies nothing. What a new row holds is up to who
// takes it: fresh memory is zero, but that of a row that was given back is as it was left.
//
// Threads. Take, Give and AddColumn may be called at once; a row's memory may be used by who learned its number from
// Take, or in any way that happens after that. Views are good for all rows, also those taken later. Thread-safe.
class Slab {
 public:
  static constexpr int kChunkShift = 18;
  // Numbers are below this. The rest of the 32-bit numbers is for those who mark a number.
  static constexpr int64_t kMaxRows = (int64_t{1} << 31) - 1;

  Slab() = default;
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  // Another column of `stride` bytes a row, also for the rows that are there. Its number: 0, 1, ...
  Result<int> AddColumn(int64_t stride);
  RowView column(int number) const;

  // Fills `rows` with numbers of rows that nobody has. RESOURCE_EXHAUSTED without memory, or after 2^31 - 1.
  Status Take(std::span<uint32_t> rows);
  // Whoever gives them back makes sure that nobody looks at them (epochs.h).
  void Give(std::span<const uint32_t> rows);

  // No row has this number, or a higher one.
  int64_t end() const { return end_.load(std::memory_order_acquire); }
  // Rows that are taken.
  int64_t taken() const;
  // Memory of the rows up to end(), all columns together.
  int64_t bytes() const;

 private:
  struct Column {
    RowView view;
    Pages directory;  // char*[1 + (kMaxRows >> kChunkShift)]
    std::vector<Pages> chunks;
  };

  // Makes chunks of a column so that `rows` rows have memory.
  static Status Reserve(Column& column, int64_t rows);

  mutable std::mutex mutex_;
  std::deque<Column> columns_;   // guarded by mutex_; references stay good, and views don't change
  std::vector<uint32_t> free_;   // guarded by mutex_
  std::atomic<int64_t> end_{0};  // written under mutex_
};

}  // namespace lockstep
