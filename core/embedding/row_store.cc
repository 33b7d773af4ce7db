#include "core/embedding/row_store.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

namespace lockstep {
namespace {

template <typename T>
void AppendTo(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

void TableRows::Append(const TableRows& other) {
  AppendTo(keys, other.keys);
  AppendTo(rows, other.rows);
  slots.resize(std::max(slots.size(), other.slots.size()));
  for (size_t s = 0; s < other.slots.size(); ++s) AppendTo(slots[s], other.slots[s]);
  AppendTo(frequencies, other.frequencies);
  AppendTo(versions, other.versions);
  AppendTo(seconds, other.seconds);
}

Result<std::unique_ptr<RowStore>> RowStore::Create(const RowLayout& layout) {
  auto store = std::make_unique<RowStore>();
  store->layout_ = layout;
  store->row_bytes_ = layout.dim * DTypeSize(layout.row_type);
  const auto add = [&](bool wanted, int64_t stride, RowView* view) -> Status {
    if (!wanted) return OkStatus();
    LOCKSTEP_ASSIGN_OR_RETURN(const int column, store->slab_.AddColumn(stride));
    *view = store->slab_.column(column);
    return OkStatus();
  };
  LOCKSTEP_RETURN_IF_ERROR(add(layout.dim > 0, store->row_bytes_, &store->rows_));
  LOCKSTEP_RETURN_IF_ERROR(add(true, sizeof(int64_t), &store->keys_));
  LOCKSTEP_RETURN_IF_ERROR(add(true, sizeof(uint8_t), &store->states_));
  int64_t counts = layout.version ? 8 : 0;
  store->frequency_offset_ = counts;
  counts += layout.frequency ? 4 : 0;
  store->seconds_offset_ = counts;
  counts += layout.seconds ? 4 : 0;
  // Aligns versions to 8 bytes.
  if (layout.version) counts = (counts + 7) / 8 * 8;
  LOCKSTEP_RETURN_IF_ERROR(add(counts > 0, counts, &store->counts_));
  return store;
}

Result<int> RowStore::AddSlot(float initial) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int column, slab_.AddColumn(layout_.dim * static_cast<int64_t>(sizeof(float))));
  slots_.push_back({slab_.column(column), initial});
  // Fresh memory is already zero.
  for (int64_t row = 0; initial != 0 && row < slab_.end(); ++row) {
    std::fill_n(reinterpret_cast<float*>(slots_.back().view[row]), layout_.dim, initial);
  }
  return static_cast<int>(slots_.size()) - 1;
}

void RowStore::FillSlot(int slot, float initial) {
  slots_[slot].initial = initial;
  for (int64_t row = 0; row < slab_.end(); ++row) {
    std::fill_n(reinterpret_cast<float*>(slots_[slot].view[row]), layout_.dim, initial);
  }
}

void RowStore::SetCounts(uint32_t row, uint32_t frequency, int64_t version, uint32_t seconds) {
  if (layout_.frequency) Frequency(row).store(frequency, std::memory_order_relaxed);
  if (layout_.version) Version(row).store(version, std::memory_order_relaxed);
  if (layout_.seconds) Seconds(row).store(seconds, std::memory_order_relaxed);
}

void RowStore::Begin(uint32_t row, int64_t key, bool changed) {
  *reinterpret_cast<int64_t*>(keys_[row]) = key;
  SetCounts(row, 0, 0, 0);
  ResetSlots(row);
  // The row did not exist at the moment of a snapshot that is being read.
  State(row).store(kLive | read_bit_ | (changed && track_changes_ ? collecting_ : 0), std::memory_order_release);
  live_.fetch_add(1, std::memory_order_relaxed);
}

void RowStore::ResetSlots(uint32_t row) {
  for (const Slot& slot : slots_) {
    std::fill_n(reinterpret_cast<float*>(slot.view[row]), layout_.dim, slot.initial);
  }
}

void RowStore::End(uint32_t row) {
  State(row).fetch_and(static_cast<uint8_t>(~kLive), std::memory_order_acq_rel);
  live_.fetch_sub(1, std::memory_order_relaxed);
}

void RowStore::BeforeChange(uint32_t row, bool changed) {
  if (changed && track_changes_ && (State(row).load(std::memory_order_relaxed) & collecting_) == 0) {
    State(row).fetch_or(collecting_, std::memory_order_relaxed);
  }
  if (!reading_ || !Claim(row, /*wait=*/true)) return;
  if (InSnapshot(row)) {
    const std::lock_guard lock(aside_mutex_);
    CopyTo(row, &aside_);
  }
  Release(row);
}

bool RowStore::Claim(uint32_t row, bool wait) {
  auto state = State(row);
  uint8_t seen = state.load(std::memory_order_acquire);
  while (true) {
    if ((seen & kLive) == 0 || (seen & kRead) == read_bit_) return false;
    if ((seen & kBusy) == 0) {
      if (state.compare_exchange_weak(seen, seen | kBusy, std::memory_order_acquire)) return true;
      continue;
    }
    if (!wait) return false;
    // Waits while another thread copies the row.
    std::this_thread::yield();
    seen = state.load(std::memory_order_acquire);
  }
}

bool RowStore::InSnapshot(uint32_t row) const {
  const uint8_t changed = collecting_ ^ (kChanged0 | kChanged1);
  return !only_changed_ || (State(row).load(std::memory_order_relaxed) & changed) != 0;
}

// Meanwhile other threads may set the collecting bit, but no other bit.
void RowStore::Release(uint32_t row) {
  State(row).fetch_and(static_cast<uint8_t>(~(collecting_ ^ (kChanged0 | kChanged1))), std::memory_order_relaxed);
  State(row).fetch_xor(kBusy | kRead, std::memory_order_release);
}

void RowStore::BeginMoment(bool only_changed) {
  reading_ = true;
  only_changed_ = only_changed;
  read_bit_ ^= kRead;
  collecting_ ^= kChanged0 | kChanged1;
}

int64_t RowStore::CountInSnapshot() const {
  int64_t count = 0;
  for (uint32_t row = 0; row < slab_.end(); ++row) count += IsLive(row) && InSnapshot(row) ? 1 : 0;
  return count;
}

void RowStore::Read(uint32_t begin, uint32_t end, TableRows* part) {
  for (uint32_t row = begin; row < end; ++row) {
    // If another thread is copying the row aside now, it comes with the copies.
    if (!Claim(row, /*wait=*/false)) continue;
    if (part != nullptr && InSnapshot(row)) CopyTo(row, part);
    Release(row);
  }
}

void RowStore::TakeAside(TableRows* part) {
  const std::lock_guard lock(aside_mutex_);
  if (part != nullptr) part->Append(aside_);
  aside_ = {};
}

void RowStore::EndMoment() { reading_ = false; }

void RowStore::CopyTo(uint32_t row, TableRows* part) const {
  part->keys.push_back(key(row));
  if (row_bytes_ > 0) part->rows.insert(part->rows.end(), rows_[row], rows_[row] + row_bytes_);
  part->slots.resize(slots_.size());
  for (size_t s = 0; s < slots_.size(); ++s) {
    const auto* slot = reinterpret_cast<const float*>(slots_[s].view[row]);
    part->slots[s].insert(part->slots[s].end(), slot, slot + layout_.dim);
  }
  if (layout_.frequency) part->frequencies.push_back(frequency(row));
  if (layout_.version) part->versions.push_back(version(row));
  if (layout_.seconds) part->seconds.push_back(seconds(row));
}

}  // namespace lockstep
