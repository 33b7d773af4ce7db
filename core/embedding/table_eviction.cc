// Removal and eviction of keys: members of DynamicTable. eviction.h defines which keys are evicted.

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "core/embedding/dynamic_table.h"

namespace lockstep {
namespace {

// The average memory of a key in the index.
constexpr int64_t kIndexBytes = 24;

}  // namespace

// A key that was examined and may be evicted for the budget; the coldest compare least. The key comes last, so that the
// order never depends on row numbers.
struct DynamicTable::Examined {
  int64_t first;   // frequency, or version
  int64_t second;  // version, or nothing
  int64_t key;
  uint32_t value;

  bool operator<(const Examined& other) const {
    return std::tie(first, second, key) < std::tie(other.first, other.second, other.key);
  }
};

void DynamicTable::RemoveKey(int64_t key, uint32_t value, Removed* removed) {
  RowStore& store = StoreOf(value);
  const uint32_t number = NumberOf(value);
  store.BeforeChange(number);
  if (!index_.Erase(key, value)) return;  // another thread removed it
  store.End(number);
  (IsRow(value) ? removed->rows : removed->candidates).push_back(number);
  removed->keys.push_back(key);
}

void DynamicTable::Reclaim(Removed removed) {
  if (tracks_changes_ && !removed.keys.empty()) {
    const MutexLock lock(removed_mutex_);
    if (changes_known_) removed_.insert(removed_.end(), removed.keys.begin(), removed.keys.end());
    // Without snapshots the list would outgrow the table. Then the next snapshot covers the whole table.
    if (static_cast<int64_t>(removed_.size()) > (1 << 20) + 2 * index_.size()) {
      changes_known_ = false;
      removed_ = {};
    }
  }
  if (removed.rows.empty() && removed.candidates.empty()) return;
  row_epochs_.Retire([this, rows = std::move(removed.rows), candidates = std::move(removed.candidates)] {
    if (!rows.empty()) admitted_->slab().Give(rows);
    if (!candidates.empty()) candidates_->slab().Give(candidates);
  });
}

int64_t DynamicTable::Remove(std::span<const int64_t> keys) {
  const ReaderLock gate(gate_);
  const Epochs::Guard rows_stay = row_epochs_.Enter();
  Removed removed;
  for (const int64_t key : keys) {
    const KeyIndex::ReadGuard guard = index_.Read();
    const uint32_t value = index_.Find(key);
    if (value != KeyIndex::kAbsent) RemoveKey(key, value, &removed);
  }
  const auto count = static_cast<int64_t>(removed.keys.size());
  Reclaim(std::move(removed));
  return count;
}

// Returns by row number whether a living batch uses the row.
std::vector<bool> DynamicTable::PinnedRows() const {
  std::vector<bool> pinned;
  const MutexLock lock(batches_mutex_);
  if (!batches_.empty()) pinned.resize(admitted_->slab().end());
  for (const std::vector<uint32_t>* rows : batches_) {
    for (const uint32_t row : *rows) {
      if (row != kNoRow) pinned[row] = true;
    }
  }
  return pinned;
}

int64_t DynamicTable::MostKeys() const {
  const EvictionOptions& options = options_.eviction;
  int64_t most = options.max_keys.value_or(std::numeric_limits<int64_t>::max());
  if (options.max_bytes) {
    const RowLayout& layout = admitted_->layout();
    const int64_t bytes = admitted_->row_bytes() + admitted_->num_slots() * layout.dim * 4 + 9 + kIndexBytes +
                          (layout.frequency ? 4 : 0) + (layout.version ? 8 : 0) + (layout.seconds ? 4 : 0);
    most = std::min(most, *options.max_bytes / bytes);
  }
  return most;
}

bool DynamicTable::IsExpired(uint32_t value, const StepInfo& now) const {
  const EvictionOptions& options = options_.eviction;
  const RowStore& store = StoreOf(value);
  const uint32_t number = NumberOf(value);
  if (options.steps_to_live && now.step - store.version(number) > *options.steps_to_live) return true;
  if (options.seconds_to_live && int64_t{now.seconds} - int64_t{store.seconds(number)} > *options.seconds_to_live) {
    return true;
  }
  if (!options.l2_threshold || !IsRow(value)) return false;
  std::vector<float> row(options_.dim);
  store.reader().Copy(number, row.data());
  double squares = 0;
  for (const float weight : row) squares += double{weight} * weight;
  return std::sqrt(squares) < *options.l2_threshold;
}

void DynamicTable::Age(uint32_t row) {
  if (admitted_->frequency(row) == 0) return;
  admitted_->BeforeChange(row);
  admitted_->HalveFrequency(row);
}

// Examines the next keys_per_call keys: removes expired keys, and the coldest of the others if there are too many.
void DynamicTable::LookAt(const StepInfo& now, const std::vector<bool>& pinned, Removed* removed) {
  // The range of hashes in which that many keys are expected. It does not get wider before the sweep through the table
  // ends: removed keys are missing in the part behind, not in the part ahead.
  const uint64_t all = std::numeric_limits<uint64_t>::max();
  const int64_t shares = std::max<int64_t>(1, index_.size() / options_.eviction.keys_per_call);
  const uint64_t begin = sweep_.next;
  const bool begins = sweep_.begins();
  const bool lfu = options_.eviction.order == EvictionOptions::Order::kLfu;
  if (begins) sweep_.ages = lfu && options_.eviction.budget() && sweep_.went > 0 && sweep_.went >= MostKeys();
  if (begins && sweep_.ages) sweep_.went = 0;
  sweep_.width = std::min(begins ? all : sweep_.width, all / static_cast<uint64_t>(shares));
  const uint64_t end = begin < all - sweep_.width ? begin + sweep_.width : all;
  sweep_.next = end == all ? 0 : end;

  std::vector<std::pair<int64_t, uint32_t>> found;
  index_.Visit(begin, end, [&](int64_t key, uint32_t value) { found.emplace_back(key, value); });
  std::vector<Examined> others;
  for (const auto& [key, value] : found) {
    if (sweep_.ages && IsRow(value)) Age(value);
    if (IsRow(value) && value < pinned.size() && pinned[value]) continue;
    if (IsExpired(value, now)) {
      RemoveKey(key, value, removed);
    } else if (IsRow(value)) {
      const int64_t version = admitted_->version(value);
      others.push_back({lfu ? admitted_->frequency(value) : version, lfu ? version : 0, key, value});
    }
  }
  const int64_t too_many = admitted_->live() - MostKeys();
  if (!options_.eviction.budget() || too_many <= 0 || others.empty()) return;
  const auto going = std::min<int64_t>(too_many, (static_cast<int64_t>(others.size()) + 7) / 8);
  std::nth_element(others.begin(), others.begin() + going - 1, others.end());
  for (int64_t i = 0; i < going; ++i) RemoveKey(others[i].key, others[i].value, removed);
  sweep_.went += going;
}

EvictionSweep DynamicTable::sweep() const {
  const MutexLock lock(evict_mutex_);
  return sweep_;
}

Status DynamicTable::RestoreSweep(const EvictionSweep& sweep) {
  LOCKSTEP_RETURN_IF_ERROR(sweep.Validate());
  const MutexLock lock(evict_mutex_);
  sweep_ = sweep;
  return OkStatus();
}

std::vector<int64_t> DynamicTable::Evict(const StepInfo& now, TableRows* evicted) {
  const ReaderLock gate(gate_);
  const MutexLock lock(evict_mutex_);
  const Epochs::Guard rows_stay = row_epochs_.Enter();
  const std::vector<bool> pinned = PinnedRows();
  Removed removed;
  LookAt(now, pinned, &removed);
  // Examines more keys to keep the budget, if possible; all remaining keys may be in use.
  const int64_t round = 2 * (index_.size() / options_.eviction.keys_per_call + 1);
  for (int64_t idle = 0; options_.eviction.budget() && admitted_->live() > MostKeys() && idle < round; ++idle) {
    const size_t before = removed.keys.size();
    LookAt(now, pinned, &removed);
    if (removed.keys.size() > before) idle = 0;
  }
  if (evicted != nullptr) {
    // No key gets the rows before Reclaim, and no update runs while the gate is held.
    for (const uint32_t row : removed.rows) admitted_->CopyTo(row, evicted);
  }
  std::sort(removed.keys.begin(), removed.keys.end());
  std::vector<int64_t> keys = removed.keys;
  Reclaim(std::move(removed));
  return keys;
}

}  // namespace lockstep
