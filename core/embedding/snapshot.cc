#include "core/embedding/snapshot.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "core/base/strings.h"
#include "core/embedding/inserter.h"

namespace lockstep {

namespace {

// The bytes of rows that are read between two updates.
constexpr int64_t kGateBytes = int64_t{64} << 10;

}  // namespace

Result<std::unique_ptr<Snapshot>> Snapshot::Begin(DynamicTable& table, Kind kind) {
  const auto declined = [&](std::string_view why) {
    return FailedPrecondition(StrCat("table '", table.options_.name, "': ", why));
  };
  const std::unique_lock gate(table.gate_);
  if (table.snapshot_open_) return declined("another snapshot is being read; there can be only one at a time");
  // Read before locking removed_mutex_, because an eviction locks that mutex while it holds its own.
  const EvictionSweep sweep = table.sweep();
  const std::lock_guard lock(table.removed_mutex_);
  if (kind == Kind::kChanges && !table.tracks_changes_) {
    return declined("changes are not recorded: set track_changes");
  }
  if (kind == Kind::kChanges && !table.changes_known_) {
    return declined("the last snapshot was not committed, or too many keys were removed: the next one has to be full");
  }
  std::unique_ptr<Snapshot> snapshot(new Snapshot(table));
  // From here on changes are collected for the next snapshot.
  snapshot->removed_ = std::exchange(table.removed_, {});
  if (kind == Kind::kFull) snapshot->removed_.clear();
  table.changes_known_ = true;
  if (table.filter_ != nullptr) {
    const std::span<const uint8_t> counters = table.filter_->bytes();
    snapshot->filter_.assign(counters.begin(), counters.end());
  }
  snapshot->sweep_ = sweep;
  snapshot->admitted_count_ = table.total_count();
  snapshot->candidate_count_ = table.candidate_count();
  snapshot->ends_[0] = table.admitted_->slab().end();
  table.admitted_->BeginMoment(kind == Kind::kChanges);
  if (table.candidates_ != nullptr) {
    snapshot->ends_[1] = table.candidates_->slab().end();
    table.candidates_->BeginMoment(kind == Kind::kChanges);
  }
  if (kind == Kind::kChanges) {
    snapshot->admitted_count_ = table.admitted_->CountInSnapshot();
    if (table.candidates_ != nullptr) snapshot->candidate_count_ = table.candidates_->CountInSnapshot();
  }
  table.snapshot_open_ = true;
  return snapshot;
}

bool Snapshot::ReadStore(RowStore& store, int64_t rows, TableRows* part) {
  const int64_t last = ends_[static_cast<int>(reads_)];
  if (next_ < last) {
    const int64_t end = std::min(last, next_ + rows);
    store.TakeAside(part);
    // An update waits for the gate, so it is held for some microseconds only.
    const int64_t block = std::max<int64_t>(1, kGateBytes / store.bytes_of_row());
    while (next_ < end) {
      const std::shared_lock gate(table_.gate_);
      const int64_t stop = std::min(end, next_ + block);
      store.Read(next_, stop, part);
      next_ = stop;
    }
    return true;
  }
  // All rows have been read, so no thread copies a row aside now or later.
  const std::unique_lock gate(table_.gate_);
  store.TakeAside(part);
  store.EndMoment();
  return false;
}

bool Snapshot::Next(int64_t rows, SnapshotPart* part) {
  const bool admitted = reads_ == Reads::kAdmitted;
  if (part != nullptr) *part = {.admitted = admitted, .rows = {}};
  if (reads_ == Reads::kNothing) return false;
  RowStore* store = admitted ? table_.admitted_.get() : table_.candidates_.get();
  if (store != nullptr && ReadStore(*store, rows, part == nullptr ? nullptr : &part->rows)) return true;
  next_ = 0;
  reads_ = admitted ? Reads::kCandidates : Reads::kNothing;
  if (reads_ != Reads::kNothing) return true;
  const std::unique_lock gate(table_.gate_);
  table_.snapshot_open_ = false;
  return true;
}

Status Snapshot::Commit() {
  if (reads_ != Reads::kNothing)
    return FailedPrecondition(StrCat("table '", table_.options_.name, "': a snapshot is not read to its end"));
  committed_ = true;
  return OkStatus();
}

Snapshot::~Snapshot() {
  // Rows that have not been read are marked all the same, because the mark has one meaning for all rows.
  while (Next(1 << 16, nullptr)) {
  }
  if (committed_) return;
  const std::lock_guard lock(table_.removed_mutex_);
  table_.changes_known_ = false;
  table_.removed_ = {};
}

Status DynamicTable::CheckShape(const TableRows& part, bool admitted) const {
  const auto wrong = [&](std::string_view what, size_t got, int64_t wanted) {
    return InvalidArgument(StrCat("table '", options_.name, "': ", part.size(), " keys to restore with ", got, " ",
                                  what, ", wanted ", wanted));
  };
  const int64_t count = part.size();
  const int64_t row_bytes = admitted ? admitted_->row_bytes() : 0;
  if (static_cast<int64_t>(part.rows.size()) != count * row_bytes) {
    return wrong("bytes of rows", part.rows.size(), count * row_bytes);
  }
  if (static_cast<int>(part.slots.size()) > admitted_->num_slots()) {
    return wrong("slots", part.slots.size(), admitted_->num_slots());
  }
  for (const std::vector<float>& slot : part.slots) {
    if (static_cast<int64_t>(slot.size()) != count * options_.dim) {
      return wrong("values of a slot", slot.size(), count * options_.dim);
    }
  }
  const auto fits = [&](size_t size) { return size == 0 || static_cast<int64_t>(size) == count; };
  if (!fits(part.frequencies.size())) return wrong("frequencies", part.frequencies.size(), count);
  if (!fits(part.versions.size())) return wrong("versions", part.versions.size(), count);
  if (!fits(part.seconds.size())) return wrong("times", part.seconds.size(), count);
  return OkStatus();
}

Status DynamicTable::Restore(const TableRows& part, const RestoreOptions& options) {
  const std::unique_lock gate(gate_);
  LOCKSTEP_RETURN_IF_ERROR(CheckShape(part, options.admitted));
  // Without exact counting, nothing is kept for keys that are not admitted.
  if (!options.admitted && candidates_ == nullptr) return OkStatus();
  Removed removed;
  Status status;
  Inserter rows(*this, options.admitted ? *admitted_ : *candidates_, options.changed);
  for (int64_t i = 0; i < part.size() && status.ok(); ++i) {
    if (!options.owns || options.owns(part.keys[i])) status = RestoreRow(part, i, options, &rows, &removed);
  }
  Reclaim(std::move(removed));
  return status;
}

Status DynamicTable::RestoreRow(const TableRows& part, int64_t i, const RestoreOptions& options, Inserter* rows,
                                Removed* removed) {
  const int64_t key = part.keys[i];
  RowStore& store = options.admitted ? *admitted_ : *candidates_;
  uint32_t value = index_.Find(key);
  if (!options.admitted && value != KeyIndex::kAbsent && IsRow(value)) return OkStatus();  // admitted for good
  if (value == KeyIndex::kAbsent || (options.admitted && IsCandidate(value))) {
    const uint32_t counted_as = value;
    if (IsCandidate(counted_as)) candidates_->BeforeChange(NumberOf(counted_as), options.changed);
    LOCKSTEP_ASSIGN_OR_RETURN(value, rows->Insert(key, counted_as));
    if (IsCandidate(counted_as)) {
      candidates_->End(NumberOf(counted_as));
      removed->candidates.push_back(NumberOf(counted_as));
    }
  } else {
    store.BeforeChange(NumberOf(value), options.changed);
  }
  const uint32_t number = NumberOf(value);
  if (options.admitted) {
    std::memcpy(store.rows()[number], part.rows.data() + i * store.row_bytes(), store.row_bytes());
    store.ResetSlots(number);
    for (size_t s = 0; s < part.slots.size(); ++s) {
      std::copy_n(part.slots[s].data() + i * options_.dim, options_.dim,
                  reinterpret_cast<float*>(store.slot(static_cast<int>(s))[number]));
    }
  }
  store.SetCounts(number, part.frequencies.empty() ? 0 : part.frequencies[i],
                  part.versions.empty() ? options.now.step : part.versions[i],
                  part.seconds.empty() ? options.now.seconds : part.seconds[i]);
  return OkStatus();
}

Status DynamicTable::RestoreFilter(std::span<const uint8_t> counters) {
  const std::unique_lock gate(gate_);
  if (filter_ == nullptr) return OkStatus();
  return filter_->Merge(counters).WithPrefix(StrCat("table '", options_.name, "': "));
}

}  // namespace lockstep
