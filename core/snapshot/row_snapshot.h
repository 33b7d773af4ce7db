#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/pages.h"
#include "core/base/row_view.h"
#include "core/base/status.h"

namespace lockstep {

// A table's rows as they were at one moment, read piece by piece while training changes them: a snapshot by copy on
// write. Code that changes a row calls BeforeChange first, which copies the row aside unless it has been read. So each
// row is copied at most once, by the first thread that changes it, and only rows that change before they are read take
// memory twice.
//
//   training, any threads             saving, one thread
//   snapshot.BeforeChange(row);       snapshot.Read(0, 4096, out);
//   ... changes the row               ... writes the rows
//
// There are two ways to read; one object is read in one of them:
//
//   kByNumber   Read and Peek: rows in the order of their numbers, also those that were copied. Copies stay until the
//               end. For variables, whose rows are written by number.
//   kAnyOrder   Visit: the rows that were not copied. TakeCopies: the others, whose memory later copies take again. For
//               tables whose rows are written with their keys.
//
// Costs. The begin maps 2 bits for each row (4 by number), whose memory comes with their first use; it takes the same
// time for any number of rows. A copy goes to a block of about 1 MB that never moves. Nothing grows as a whole: a hash
// table or a vector of all copies would make one training step much longer than the others.
//
// Without memory for a copy, the snapshot is lost and the change continues: status() is an error, and the rows that
// were read are not to be used.
//
// Threads. BeforeChange may be called for any row at any time, and meanwhile one thread reads. A row changes only after
// BeforeChange has returned for it. A thread that wants a row waits while another one copies it.
class RowSnapshot {
 public:
  enum class Order : uint8_t { kByNumber, kAnyOrder };
  // A part of each row. The memory outlives the snapshot.
  struct Column {
    RowView rows;
    int64_t bytes;  // of a row
  };

  // Begins a snapshot of the rows [0, count), less than 2^32. Rows with higher numbers are not part of it.
  // RESOURCE_EXHAUSTED without memory. No row changes meanwhile.
  static Result<std::unique_ptr<RowSnapshot>> Begin(std::vector<Column> columns, int64_t count, Order order);
  ~RowSnapshot();
  RowSnapshot(const RowSnapshot&) = delete;
  RowSnapshot& operator=(const RowSnapshot&) = delete;

  // Copies a row aside unless that was done, or the row was read. is_part() is called then, by a thread that has the
  // row for itself: whether the row is part of the snapshot. A row that is not counts as read from then on.
  template <typename IsPart>
  void BeforeChange(uint32_t row, const IsPart& is_part) {
    if (row >= count_ || !ClaimOrWait(row)) return;
    if (is_part()) CopyAside(row);
    Finish(row, 1);
  }
  // Does the same for rows that are part of it. Numbers may repeat.
  void BeforeChange(std::span<const uint32_t> rows) {
    for (const uint32_t row : rows) {
      BeforeChange(row, [] { return true; });
    }
  }

  // Writes the rows [begin, end) to `out`, [end - begin, row_bytes]. Each row is read at most once.
  void Read(int64_t begin, int64_t end, void* out) { ReadRows(begin, end, out, /*again=*/false); }
  // Does the same for rows that will be read again.
  void Peek(int64_t begin, int64_t end, void* out) { ReadRows(begin, end, out, /*again=*/true); }

  // Calls visit(row) for each row in [begin, end) that was neither copied nor read, with the row for itself. A row that
  // another thread is copying now comes with the copies.
  template <typename Visitor>
  void Visit(int64_t begin, int64_t end, const Visitor& visit) {
    end = std::min(end, count_);
    for (int64_t row = begin; row < end; ++row) {
      if (Claim(row, row + 1) == 0) continue;
      visit(static_cast<uint32_t>(row));
      Finish(row, 1);
    }
  }
  // Calls take(data) for each copy since the last call, [row_bytes]: the columns one after another. Copies of rows that
  // are being copied now come with a later call.
  template <typename Taker>
  void TakeCopies(const Taker& take) {
    Copy* const first = all_.exchange(nullptr, std::memory_order_acquire);
    Copy* last = nullptr;
    for (Copy* copy = first; copy != nullptr; copy = copy->next) {
      take(static_cast<const char*>(DataOf(copy)));
      last = copy;
    }
    if (last != nullptr) Free(first, last);
  }

  // Returns RESOURCE_EXHAUSTED if a row could not be copied before it changed. To be asked after the last read.
  Status status() const;
  // Returns the bytes of a row: the sum over its columns.
  int64_t row_bytes() const { return row_bytes_; }
  // Returns the memory of the copies.
  int64_t copied_bytes() const LOCKSTEP_EXCLUDES(mutex_);

 private:
  // A row's state, 2 bits in the word of its group. The order of the numbers is the order of the states.
  static constexpr uint64_t kUnread = 0, kBusy = 1, kDone = 2;  // kBusy: a thread has the row for itself
  static constexpr uint64_t kOfAll = 0x5555555555555555;        // the lower bit of each state
  static constexpr int64_t kGroup = 32;                         // rows of a word

  // A copied row, followed by its bytes.
  struct Copy {
    Copy* next;  // in its chain
    uint32_t row;
  };
  struct Block {
    Block* next;
  };
  static constexpr int64_t kBlockBytes = int64_t{1} << 20;
  static constexpr int64_t kMostBlockRows = 1024;

  RowSnapshot(std::vector<Column> columns, int64_t count, Order order);

  static char* DataOf(Copy* copy) { return reinterpret_cast<char*>(copy + 1); }
  std::atomic_ref<uint64_t> States(int64_t row) const {
    return std::atomic_ref<uint64_t>(reinterpret_cast<uint64_t*>(states_.data())[row / kGroup]);
  }
  // Returns the chain in which the row's copy is: one for each group, or one for all.
  std::atomic_ref<Copy*> Chain(int64_t row) const {
    return std::atomic_ref<Copy*>(reinterpret_cast<Copy**>(chains_.data())[row / kGroup]);
  }
  uint64_t StateOf(int64_t row) const {
    return States(row).load(std::memory_order_acquire) >> (2 * (row % kGroup)) & 3;
  }
  static uint64_t Bits(int64_t row, int64_t count) {
    const uint64_t of_count = count == kGroup ? kOfAll : kOfAll & ((uint64_t{1} << (2 * count)) - 1);
    return of_count << (2 * (row % kGroup));
  }

  // Takes the next rows from `row` on for this thread, as far as they are unread and of one group. Returns how many.
  int64_t Claim(int64_t row, int64_t end);
  // Takes a row for this thread, or waits until it is done and returns false.
  bool ClaimOrWait(int64_t row) {
    const uint64_t state = StateOf(row);
    return state != kDone && ClaimUndone(row);
  }
  bool ClaimUndone(int64_t row);
  // End a claim: the rows are done, or unread as before.
  void Finish(int64_t row, int64_t count) { States(row).fetch_add(Bits(row, count), std::memory_order_release); }
  void Return(int64_t row, int64_t count) { States(row).fetch_sub(Bits(row, count), std::memory_order_release); }

  void CopyAside(uint32_t row);
  void CopyRows(int64_t begin, int64_t end, char* out) const;
  void ReadRows(int64_t begin, int64_t end, void* out, bool again);
  // Returns memory for a copy, or null without memory.
  Copy* Reserve() LOCKSTEP_EXCLUDES(mutex_);
  // Gives the memory of a chain of copies to later ones.
  void Free(Copy* first, Copy* last) LOCKSTEP_EXCLUDES(mutex_);

  const std::vector<Column> columns_;
  const int64_t count_;
  const Order order_;
  const int64_t row_bytes_;
  const int64_t copy_bytes_;  // of a copy with its bytes
  const int64_t block_rows_;
  Pages states_;  // uint64_t[groups]
  Pages chains_;  // Copy*[groups], by number
  std::atomic<Copy*> all_{nullptr};
  std::atomic<bool> lost_{false};

  mutable Mutex mutex_;
  Block* blocks_ LOCKSTEP_GUARDED_BY(mutex_) = nullptr;
  Copy* free_ LOCKSTEP_GUARDED_BY(mutex_) = nullptr;
  int64_t num_blocks_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  int64_t used_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // copies in the newest block
};

}  // namespace lockstep
