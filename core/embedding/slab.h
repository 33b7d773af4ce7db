#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/pages.h"
#include "core/base/row_view.h"
#include "core/base/status.h"

namespace lockstep {

// Rows that are numbered from 0 and lie in columns: weights, each optimizer slot, keys, counts. A row has the same
// number in all columns, and keeps its place from the moment it is taken until it is given back. Returned numbers are
// taken again before new ones are made.
//
// A column is a list of chunks of 2^18 rows, made on demand, which never move. Memory is taken page by page, when it is
// touched. So a new chunk costs nothing, and growth copies nothing. The thread that takes a row sets its values: fresh
// memory is zero, but the memory of a returned row is unchanged.
//
// Threads. Take, Give and AddColumn may be called concurrently. A thread may use a row's memory if it learned the
// number from Take, or later from such a thread. Views are valid for all rows, including those that are taken later.
// Thread-safe.
class Slab {
 public:
  static constexpr int kChunkShift = 18;
  // All row numbers are below this. The other 32-bit numbers are free for callers that mark a number.
  static constexpr int64_t kMaxRows = (int64_t{1} << 31) - 1;

  Slab() = default;
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  // Adds a column of `stride` bytes per row, also for existing rows. Returns its number: 0, 1, ...
  Result<int> AddColumn(int64_t stride);
  RowView column(int number) const;

  // Fills `rows` with numbers of free rows. RESOURCE_EXHAUSTED without memory, or after 2^31 - 1 rows.
  Status Take(std::span<uint32_t> rows);
  // Returns rows to the slab. The caller ensures that no thread uses them any more (epochs.h).
  void Give(std::span<const uint32_t> rows);

  // Returns a number above all rows' numbers.
  int64_t end() const { return end_.load(std::memory_order_acquire); }
  // Returns the number of rows that are taken.
  int64_t taken() const;
  // Returns the memory of the rows up to end(), in all columns together.
  int64_t bytes() const;

 private:
  struct Column {
    RowView view;
    Pages directory;  // char*[1 + (kMaxRows >> kChunkShift)]
    std::vector<Pages> chunks;
  };

  // Makes chunks of a column until `rows` rows have memory.
  static Status Reserve(Column& column, int64_t rows);

  mutable Mutex mutex_;
  std::deque<Column> columns_ LOCKSTEP_GUARDED_BY(mutex_);  // references stay valid, and views do not change
  std::vector<uint32_t> free_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<int64_t> end_{0};  // written under mutex_
};

}  // namespace lockstep
