#include "core/embedding/row_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace lockstep {
namespace {

template <typename T>
void AppendTo(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

void TableRows::Clear() {
  keys.clear();
  rows.clear();
  for (std::vector<float>& slot : slots) slot.clear();
  frequencies.clear();
  versions.clear();
  seconds.clear();
}

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
  // A row that did not exist when the snapshot began is not part of it.
  if (snapshot_ != nullptr) snapshot_->BeforeChange(row, [] { return false; });
  *reinterpret_cast<int64_t*>(keys_[row]) = key;
  SetCounts(row, 0, 0, 0);
  ResetSlots(row);
  State(row).store(kLive | (changed && track_changes_ ? collecting_ : 0), std::memory_order_release);
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
  if (snapshot_ != nullptr) {
    snapshot_->BeforeChange(row, [&] { return TakesPart(row); });
  }
}

bool RowStore::TakesPart(uint32_t row) {
  const uint8_t changed = changed_bit();
  uint8_t state = State(row).load(std::memory_order_acquire);
  // Meanwhile other threads may set the collecting bit, but no other bit.
  if ((state & changed) != 0) State(row).fetch_and(static_cast<uint8_t>(~changed), std::memory_order_relaxed);
  return (state & kLive) != 0 && (!only_changed_ || (state & changed) != 0);
}

Result<std::unique_ptr<RowSnapshot>> RowStore::MakeSnapshot() const {
  std::vector<RowSnapshot::Column> columns = {{keys_, sizeof(int64_t)}};
  const auto add = [&](const RowView& view) { columns.push_back({view, view.stride}); };
  for (const Slot& slot : slots_) add(slot.view);
  if (row_bytes_ > 0) add(rows_);
  if (counts()) add(counts_);
  return RowSnapshot::Begin(std::move(columns), slab_.end(), RowSnapshot::Order::kAnyOrder);
}

void RowStore::BeginSnapshot(std::unique_ptr<RowSnapshot> snapshot, bool only_changed) {
  snapshot_ = std::move(snapshot);
  snapshot_slots_ = slots_.size();
  only_changed_ = only_changed;
  collecting_ ^= kChanged0 | kChanged1;
}

int64_t RowStore::CountInSnapshot() const {
  int64_t count = 0;
  for (uint32_t row = 0; row < slab_.end(); ++row) {
    count += IsLive(row) && (State(row).load(std::memory_order_relaxed) & changed_bit()) != 0 ? 1 : 0;
  }
  return count;
}

void RowStore::Reserve(int64_t rows, TableRows* part) const {
  if (only_changed_) return;  // few of them, as a rule
  const int64_t count = part->size() + rows;
  part->keys.reserve(count);
  part->rows.reserve(count * row_bytes_);
  part->slots.resize(snapshot_slots_);
  for (std::vector<float>& slot : part->slots) slot.reserve(count * layout_.dim);
  if (layout_.frequency) part->frequencies.reserve(count);
  if (layout_.version) part->versions.reserve(count);
  if (layout_.seconds) part->seconds.reserve(count);
}

void RowStore::Read(uint32_t begin, uint32_t end, TableRows* part) {
  snapshot_->Visit(begin, end, [&](uint32_t row) {
    if (TakesPart(row) && part != nullptr) CopyTo(row, snapshot_slots_, part);
  });
}

void RowStore::TakeCopies(TableRows* part) {
  snapshot_->TakeCopies([&](const char* data) {
    if (part == nullptr) return;
    const auto load = [](const char* from, auto value) {
      std::memcpy(&value, from, sizeof(value));
      return value;
    };
    // The columns, as MakeSnapshot lists them.
    const char* const slots = data + sizeof(int64_t);
    const int64_t slot_bytes = layout_.dim * static_cast<int64_t>(sizeof(float));
    const char* const row = slots + static_cast<int64_t>(snapshot_slots_) * slot_bytes;
    const char* const counts = row + row_bytes_;
    Append(
        load(data, int64_t{}), row, [&](size_t s) { return slots + static_cast<int64_t>(s) * slot_bytes; },
        snapshot_slots_, part);
    if (layout_.frequency) part->frequencies.push_back(load(counts + frequency_offset_, uint32_t{}));
    if (layout_.version) part->versions.push_back(load(counts, int64_t{}));
    if (layout_.seconds) part->seconds.push_back(load(counts + seconds_offset_, uint32_t{}));
  });
}

template <typename SlotAt>
void RowStore::Append(int64_t key, const char* row, const SlotAt& slot_at, size_t slots, TableRows* part) const {
  part->keys.push_back(key);
  if (row_bytes_ > 0) part->rows.insert(part->rows.end(), row, row + row_bytes_);
  part->slots.resize(slots);
  for (size_t s = 0; s < slots; ++s) {
    const auto* values = reinterpret_cast<const float*>(slot_at(s));
    part->slots[s].insert(part->slots[s].end(), values, values + layout_.dim);
  }
}

void RowStore::CopyTo(uint32_t row, size_t slots, TableRows* part) const {
  Append(
      key(row), row_bytes_ > 0 ? rows_[row] : nullptr, [&](size_t s) { return slots_[s].view[row]; }, slots, part);
  if (layout_.frequency) part->frequencies.push_back(frequency(row));
  if (layout_.version) part->versions.push_back(version(row));
  if (layout_.seconds) part->seconds.push_back(seconds(row));
}

}  // namespace lockstep
