#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/float16.h"
#include "core/base/prefetch.h"
#include "core/base/status.h"
#include "core/base/stream_store.h"
#include "core/embedding/optimizer/update.h"
#include "core/embedding/slab.h"
#include "core/snapshot/row_snapshot.h"

namespace lockstep {

// Rows of a table with their keys, in the form of a checkpoint: N keys, and N of everything else. Values that the table
// does not record are empty.
struct TableRows {
  std::vector<int64_t> keys;              // [N]
  std::vector<char> rows;                 // [N, D] of the row type; empty for keys that are not admitted
  std::vector<std::vector<float>> slots;  // [N, D] for each slot
  std::vector<uint32_t> frequencies;      // [N]
  std::vector<int64_t> versions;          // [N]
  std::vector<uint32_t> seconds;          // [N]: time when the key was last seen, on the caller's clock

  int64_t size() const { return static_cast<int64_t>(keys.size()); }
  // Removes all rows, and keeps the memory for the next ones.
  void Clear();
  // Appends the rows of another part.
  void Append(const TableRows& other);
};

// The recorded values of a row.
struct RowLayout {
  int64_t dim = 0;  // 0: no weights
  DType row_type = DType::kFloat32;
  bool frequency = false;
  bool version = false;
  bool seconds = false;
};

// Reads rows as floats. It is a value without pointers to changing data, for loops over many rows. Thread-safe.
struct RowReader {
  RowView rows;
  int64_t dim;
  DType type = DType::kFloat32;

  // Prefetches a row and returns its address.
  const char* Prefetch(uint32_t row) const {
    const char* data = rows[row];
    // The processor itself prefetches the rest of long rows while they are read.
    PrefetchForRead(data, rows.stride < 512 ? rows.stride : 512);
    return data;
  }

  // Returns whether it pays to write N rows to `out`, [N, D], by Stream: the output is larger than the caches near a
  // core, and rows are whole cache lines.
  bool Streams(int64_t count, const float* out) const {
    constexpr int64_t kLeastBytes = 1 << 20;
    return type == DType::kFloat32 && dim * 4 % kStreamedLine == 0 && count * dim * 4 >= kLeastBytes &&
           IsLineAligned(out);
  }
  // Does the same as Copy, but bypasses the caches. Call StreamFence after the last one.
  void Stream(const char* data, float* out) const {
    for (int64_t done = 0; done < dim; done += kStreamedLine / 4) StreamLine(data + 4 * done, out + done);
  }

  // out: [D].
  void Copy(uint32_t row, float* __restrict out) const { Copy(rows[row], out); }
  void Copy(const char* data, float* __restrict out) const {
    int64_t done = 0;
    if (type == DType::kFloat32) {
      // Copies of a constant length, which compile to a few instructions.
      for (; done + 16 <= dim; done += 16) std::memcpy(out + done, data + 4 * done, 64);
      for (; done < dim; ++done) std::memcpy(out + done, data + 4 * done, 4);
      return;
    }
    const auto* stored = reinterpret_cast<const uint16_t*>(data);
    if (type == DType::kFloat16) {
      for (; done < dim; ++done) out[done] = Float16ToFloat(stored[done]);
    } else {
      for (; done < dim; ++done) out[done] = BFloat16ToFloat(stored[done]);
    }
  }
};

// The rows of one kind of a table (admitted keys, or candidates) in a slab, each with its key, its counts and a byte of
// state.
//
// A snapshot (snapshot.h) needs all rows as they were when it began, but reads them later. So a thread that wants to
// change a row first calls BeforeChange, which has it copied aside unless the snapshot has read it
// (core/snapshot/row_snapshot.h). Two bits of a row's state mean "changed since the last snapshot": one belongs to the
// snapshot that is being read, and the other collects changes for the next one. They take turns, so that the begin of a
// snapshot costs nothing, however many rows there are.
//
// Threads. Counts are atomic, and BeforeChange and Read may be called for any row concurrently. The table has to ensure
// that weights and slots are not read while they change. During BeginSnapshot and EndSnapshot no other call may run.
class RowStore {
 public:
  static Result<std::unique_ptr<RowStore>> Create(const RowLayout& layout);

  const RowLayout& layout() const { return layout_; }
  int64_t row_bytes() const { return row_bytes_; }
  // Returns the bytes of a row with its slots.
  int64_t bytes_of_row() const { return row_bytes_ + 4 * layout_.dim * static_cast<int64_t>(slots_.size()) + 24; }
  Slab& slab() { return slab_; }
  // Returns the number of rows with a key.
  int64_t live() const { return live_.load(std::memory_order_relaxed); }
  // Returns the memory of rows, slots, keys and counts.
  int64_t bytes() const { return slab_.bytes(); }

  // Adds a slot of D floats with the value `initial`, also for existing rows.
  Result<int> AddSlot(float initial);
  int num_slots() const { return static_cast<int>(slots_.size()); }
  // Sets a slot to `initial` in all rows.
  void FillSlot(int slot, float initial);
  // Sets the slot's initial value for rows that come from now on.
  void SetInitial(int slot, float initial) { slots_[slot].initial = initial; }

  RowView rows() const { return rows_; }
  RowReader reader() const { return {rows_, layout_.dim, layout_.row_type}; }
  RowView slot(int number) const { return slots_[number].view; }
  const RowView& keys() const { return keys_; }

  int64_t key(uint32_t row) const { return *reinterpret_cast<const int64_t*>(keys_[row]); }
  bool IsLive(uint32_t row) const { return (State(row).load(std::memory_order_acquire) & kLive) != 0; }
  // Return recorded counts, or 0 if they are not recorded.
  uint32_t frequency(uint32_t row) const {
    return layout_.frequency ? Frequency(row).load(std::memory_order_relaxed) : 0;
  }
  int64_t version(uint32_t row) const { return layout_.version ? Version(row).load(std::memory_order_relaxed) : 0; }
  uint32_t seconds(uint32_t row) const { return layout_.seconds ? Seconds(row).load(std::memory_order_relaxed) : 0; }

  // Returns whether Touch changes a row.
  bool counts() const { return layout_.frequency || layout_.version || layout_.seconds; }
  void PrefetchCounts(uint32_t row) const {
    if (counts()) PrefetchForWrite(counts_[row]);
  }
  // Records that the key was seen `times` more in `step`, at `seconds`.
  void Touch(uint32_t row, int64_t times, int64_t step, uint32_t seconds) {
    if (layout_.frequency) {
      // Stays at the largest number instead of wrapping around.
      auto frequency = Frequency(row);
      const uint32_t before = frequency.fetch_add(static_cast<uint32_t>(times), std::memory_order_relaxed);
      if (before + times > UINT32_MAX) frequency.store(UINT32_MAX, std::memory_order_relaxed);
    }
    if (layout_.version && Version(row).load(std::memory_order_relaxed) != step) {
      Version(row).store(step, std::memory_order_relaxed);
    }
    if (layout_.seconds && Seconds(row).load(std::memory_order_relaxed) != seconds) {
      Seconds(row).store(seconds, std::memory_order_relaxed);
    }
  }
  void SetCounts(uint32_t row, uint32_t frequency, int64_t version, uint32_t seconds);
  // Halves the frequency; keys that are seen meanwhile count in full.
  void HalveFrequency(uint32_t row) {
    const uint32_t before = frequency(row);
    if (before > 0) Frequency(row).fetch_sub(before - before / 2, std::memory_order_relaxed);
  }

  // Assigns a row that was taken from the slab to the key: slots get their initial values, counts are zero. The caller
  // fills its weights before others can find it.
  void Begin(uint32_t row, int64_t key, bool changed);
  void ResetSlots(uint32_t row);
  // Ends the row's life: it has no key any more. BeforeChange comes first.
  void End(uint32_t row);

  // Returns whether BeforeChange has anything to do.
  bool watched() const { return track_changes_ || snapshot_ != nullptr; }
  void TrackChanges() { track_changes_ = true; }
  // Call it before a change of the row. `changed`: the row counts as changed for the next incremental snapshot.
  void BeforeChange(uint32_t row, bool changed = true);

  // Makes a snapshot of all rows, to begin with. RESOURCE_EXHAUSTED without memory.
  Result<std::unique_ptr<RowSnapshot>> MakeSnapshot() const;
  // Begins it: of all rows, or of those that changed since the last one began.
  void BeginSnapshot(std::unique_ptr<RowSnapshot> snapshot, bool only_changed);
  // Returns the number of rows in a snapshot of changes. No other call may run meanwhile.
  int64_t CountInSnapshot() const;
  // Takes memory for `rows` more rows of the snapshot, so that a part does not move while it grows.
  void Reserve(int64_t rows, TableRows* part) const;
  // Appends rows of the snapshot with numbers in [begin, end) that have not been copied aside. One thread reads.
  void Read(uint32_t begin, uint32_t end, TableRows* part);
  // Appends the rows that were copied aside since the last call.
  void TakeCopies(TableRows* part);
  // Ends it. The caller destroys it when nobody waits: it may have much memory.
  std::unique_ptr<RowSnapshot> EndSnapshot() { return std::move(snapshot_); }

  // Appends one row in its present state.
  void CopyTo(uint32_t row, TableRows* part) const { CopyTo(row, slots_.size(), part); }

 private:
  enum StateBits : uint8_t {
    kLive = 1,      // has a key
    kChanged0 = 2,  // changed since a snapshot: one of the two collects, the other belongs to the one that is read
    kChanged1 = 4,
  };
  struct Slot {
    RowView view;
    float initial;
  };

  template <typename T>
  static std::atomic_ref<T> Atomic(const RowView& column, uint32_t row, int64_t offset = 0) {
    return std::atomic_ref<T>(*reinterpret_cast<T*>(column[row] + offset));
  }
  std::atomic_ref<uint8_t> State(uint32_t row) const { return Atomic<uint8_t>(states_, row); }
  std::atomic_ref<uint32_t> Frequency(uint32_t row) const { return Atomic<uint32_t>(counts_, row, frequency_offset_); }
  std::atomic_ref<int64_t> Version(uint32_t row) const { return Atomic<int64_t>(counts_, row); }
  std::atomic_ref<uint32_t> Seconds(uint32_t row) const { return Atomic<uint32_t>(counts_, row, seconds_offset_); }

  // Returns the state bit "changed" that belongs to the snapshot.
  uint8_t changed_bit() const { return collecting_ ^ (kChanged0 | kChanged1); }
  // Returns whether a row is part of the snapshot, and clears its bit. Called once for each row, by the thread that has
  // it for itself.
  bool TakesPart(uint32_t row);
  // Append a row with its first `slots` slots. slot_at(s): the address of its values of slot s.
  void CopyTo(uint32_t row, size_t slots, TableRows* part) const;
  template <typename SlotAt>
  void Append(int64_t key, const char* row, const SlotAt& slot_at, size_t slots, TableRows* part) const;

  RowLayout layout_;
  int64_t row_bytes_ = 0;
  Slab slab_;
  RowView rows_{}, keys_{}, states_{};
  // The counts of a row side by side: version (8 bytes), frequency (4), seconds (4).
  RowView counts_{};
  int64_t frequency_offset_ = 0, seconds_offset_ = 0;
  std::vector<Slot> slots_;
  std::atomic<int64_t> live_{0};

  bool track_changes_ = false;
  uint8_t collecting_ = kChanged0;
  bool only_changed_ = false;              // the snapshot has only changed rows
  size_t snapshot_slots_ = 0;              // those when it began
  std::unique_ptr<RowSnapshot> snapshot_;  // null if none is read
};

}  // namespace lockstep
