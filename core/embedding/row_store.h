#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/float16.h"
#include "core/base/prefetch.h"
#include "core/base/status.h"
#include "core/base/stream_store.h"
#include "core/embedding/optimizer/update.h"
#include "core/embedding/slab.h"

namespace lockstep {

// Rows of a table by their keys, as a checkpoint holds them: N keys and N of everything else. What the table doesn't
// record is empty.
struct TableRows {
  std::vector<int64_t> keys;              // [N]
  std::vector<char> rows;                 // [N, D] of the row type; empty for keys that are not admitted
  std::vector<std::vector<float>> slots;  // of each slot: [N, D]
  std::vector<uint32_t> frequencies;      // [N]
  std::vector<int64_t> versions;          // [N]
  std::vector<uint32_t> seconds;          // [N]: when the key was last seen, by the caller's clock

  int64_t size() const { return static_cast<int64_t>(keys.size()); }
  // Copies the rows of another part to the end.
  void Append(const TableRows& other);
};

// What a RowStore records of a row.
struct RowLayout {
  int64_t dim = 0;  // 0: no weights
  DType row_type = DType::kFloat32;
  bool frequency = false;
  bool version = false;
  bool seconds = false;
};

// Reads rows as floats. A value without pointers to what may change, for loops over many rows. Thread-safe.
struct RowReader {
  RowView rows;
  int64_t dim;
  DType type = DType::kFloat32;

  // Gives where the row lies.
  const char* Prefetch(uint32_t row) const {
    const char* data = rows[row];
    // Of long rows the processor itself fetches what follows, once they are being read.
    PrefetchForRead(data, rows.stride < 512 ? rows.stride : 512);
    return data;
  }

  // Whether N rows are worth to be written to `out`, [N, D], by Stream: more than the caches near a core would keep,
  // and whole lines.
  bool Streams(int64_t count, const float* out) const {
    constexpr int64_t kLeastBytes = 1 << 20;
    return type == DType::kFloat32 && dim * 4 % kStreamedLine == 0 && count * dim * 4 >= kLeastBytes &&
           IsLineAligned(out);
  }
  // As Copy, around the caches. StreamFence comes behind the last one.
  void Stream(const char* data, float* out) const {
    for (int64_t done = 0; done < dim; done += kStreamedLine / 4) StreamLine(data + 4 * done, out + done);
  }

  // out: [D].
  void Copy(uint32_t row, float* __restrict out) const { Copy(rows[row], out); }
  void Copy(const char* data, float* __restrict out) const {
    int64_t done = 0;
    if (type == DType::kFloat32) {
      // Copies of a constant length, which the compiler makes of a few instructions.
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

// The rows of one kind (admitted keys, or keys that are counted until they are) of a table in a slab, each with its
// key, its counts and a byte of state, and the protocol by which they are copied while they change.
//
// A moment. A snapshot wants all rows as they were at one moment, but reads them later, piece by piece. From that
// moment on whoever wants to change a row first calls BeforeChange, which copies it aside if the snapshot has not read
// it yet; so a row is copied once, by whoever comes first, and work goes on. The state has a bit for "read", whose
// meaning changes with every moment, so that a moment costs nothing however many rows there are; and two bits for
// "changed since the last moment", of which one belongs to the snapshot that is being read, and the other collects for
// the next.
//
// Threads. Counts are atomic, and BeforeChange and Read may be called for any row at once. Changing weights and slots
// is up to the table: it makes sure that nobody reads them meanwhile. BeginMoment and EndMoment are called while
// nothing else is.
class RowStore {
 public:
  static Result<std::unique_ptr<RowStore>> Create(const RowLayout& layout);

  const RowLayout& layout() const { return layout_; }
  int64_t row_bytes() const { return row_bytes_; }
  Slab& slab() { return slab_; }
  // Rows that have a key.
  int64_t live() const { return live_.load(std::memory_order_relaxed); }
  // Memory for rows, slots, keys and counts.
  int64_t bytes() const { return slab_.bytes(); }

  // Another slot, also for the rows that are there: D floats that hold `initial`.
  Result<int> AddSlot(float initial);
  int num_slots() const { return static_cast<int>(slots_.size()); }
  // A slot begins anew with `initial`, in all rows.
  void FillSlot(int slot, float initial);
  // What rows begin with that come from now on.
  void SetInitial(int slot, float initial) { slots_[slot].initial = initial; }

  RowView rows() const { return rows_; }
  RowReader reader() const { return {rows_, layout_.dim, layout_.row_type}; }
  RowView slot(int number) const { return slots_[number].view; }
  const RowView& keys() const { return keys_; }

  int64_t key(uint32_t row) const { return *reinterpret_cast<const int64_t*>(keys_[row]); }
  bool IsLive(uint32_t row) const { return (State(row).load(std::memory_order_acquire) & kLive) != 0; }
  // 0 where not recorded.
  uint32_t frequency(uint32_t row) const {
    return layout_.frequency ? Frequency(row).load(std::memory_order_relaxed) : 0;
  }
  int64_t version(uint32_t row) const { return layout_.version ? Version(row).load(std::memory_order_relaxed) : 0; }
  uint32_t seconds(uint32_t row) const { return layout_.seconds ? Seconds(row).load(std::memory_order_relaxed) : 0; }

  // Whether a touch changes anything of a row.
  bool counts() const { return layout_.frequency || layout_.version || layout_.seconds; }
  void PrefetchCounts(uint32_t row) const {
    if (counts()) PrefetchForWrite(counts_[row]);
  }
  // The key has been seen `times` more in `step`, at `seconds`.
  void Touch(uint32_t row, int64_t times, int64_t step, uint32_t seconds) {
    if (layout_.frequency) {
      // Stays at the largest number instead of beginning anew.
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
  // What is seen meanwhile counts in full.
  void HalveFrequency(uint32_t row) {
    const uint32_t before = frequency(row);
    if (before > 0) Frequency(row).fetch_sub(before - before / 2, std::memory_order_relaxed);
  }

  // Makes a row that was taken from the slab the key's: slots are set to what they begin with, counts to zero. Its
  // weights are the caller's to fill, before others can find it.
  void Begin(uint32_t row, int64_t key, bool changed);
  void ResetSlots(uint32_t row);
  // The row has no key any more. BeforeChange comes first.
  void End(uint32_t row);

  // Whether BeforeChange has anything to do.
  bool watched() const { return track_changes_ || reading_; }
  void TrackChanges() { track_changes_ = true; }
  // `changed`: it counts as changed for the next incremental snapshot.
  void BeforeChange(uint32_t row, bool changed = true);

  // From now on a snapshot is read: of all rows, or of those that changed since the last moment.
  void BeginMoment(bool only_changed);
  // How many rows the snapshot has, where it has only those that changed. Called while nothing else is.
  int64_t CountInSnapshot() const;
  // Appends rows of the snapshot with numbers in [begin, end) that have not been copied aside.
  void Read(uint32_t begin, uint32_t end, TableRows* part);
  // Moves what was copied aside to the end of `part`.
  void TakeAside(TableRows* part);
  void EndMoment();

  // Appends one row as it is.
  void CopyTo(uint32_t row, TableRows* part) const;

 private:
  enum StateBits : uint8_t {
    kLive = 1,      // has a key
    kRead = 2,      // equals read_bit_: the snapshot has it
    kBusy = 4,      // is being copied
    kChanged0 = 8,  // changed since a moment: one of the two collects, the other belongs to the snapshot
    kChanged1 = 16,
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

  // The snapshot's copy of a row is this thread's to make: true. Otherwise somebody has made it (or is making it,
  // unless `wait`), or there is nothing to copy.
  bool Claim(uint32_t row, bool wait);
  // Whether a claimed row belongs to the snapshot; ends the claim.
  bool InSnapshot(uint32_t row) const;
  void Release(uint32_t row);

  RowLayout layout_;
  int64_t row_bytes_ = 0;
  Slab slab_;
  RowView rows_{}, keys_{}, states_{};
  // What is recorded of a row, side by side: version (8 bytes), frequency (4), seconds (4).
  RowView counts_{};
  int64_t frequency_offset_ = 0, seconds_offset_ = 0;
  std::vector<Slot> slots_;
  std::atomic<int64_t> live_{0};

  bool track_changes_ = false;
  bool reading_ = false;       // a moment has begun and not ended
  bool only_changed_ = false;  // what the snapshot reads
  uint8_t read_bit_ = 0;       // kRead or 0
  uint8_t collecting_ = kChanged0;
  std::mutex aside_mutex_;
  TableRows aside_;  // guarded by aside_mutex_
};

}  // namespace lockstep
