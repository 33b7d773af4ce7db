#include "core/embedding/snapshot.h"

#include <algorithm>
#include <utility>

#include "core/base/strings.h"

namespace lockstep {

namespace {

// The bytes of rows that are read between two updates.
constexpr int64_t kGateBytes = int64_t{64} << 10;

}  // namespace

Result<std::unique_ptr<Snapshot>> Snapshot::Begin(DynamicTable& table, Kind kind) {
  const auto declined = [&](std::string_view why) {
    return FailedPrecondition(StrCat("table '", table.options_.name, "': ", why));
  };
  const WriterLock gate(table.gate_);
  if (table.snapshot_open_) return declined("another snapshot is being read; there can be only one at a time");
  // Read before locking removed_mutex_, because an eviction locks that mutex while it holds its own.
  const EvictionSweep sweep = table.sweep();
  const MutexLock lock(table.removed_mutex_);
  if (kind == Kind::kChanges && !table.tracks_changes_) {
    return declined("changes are not recorded: set track_changes");
  }
  if (kind == Kind::kChanges && !table.changes_known_) {
    return declined("the last snapshot was not committed, or too many keys were removed: the next one has to be full");
  }
  std::unique_ptr<RowSnapshot> admitted, candidates;
  LOCKSTEP_ASSIGN_OR_RETURN(admitted, table.admitted_->MakeSnapshot());
  if (table.candidates_ != nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(candidates, table.candidates_->MakeSnapshot());
  }
  std::unique_ptr<Snapshot> snapshot(new Snapshot(table));
  snapshot->slots_ = table.slots_;
  // Nothing fails from here on, and changes are collected for the next snapshot.
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
  table.admitted_->BeginSnapshot(std::move(admitted), kind == Kind::kChanges);
  if (table.candidates_ != nullptr) {
    snapshot->ends_[1] = table.candidates_->slab().end();
    table.candidates_->BeginSnapshot(std::move(candidates), kind == Kind::kChanges);
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
  store.TakeCopies(part);
  if (next_ < last) {
    const int64_t end = std::min(last, next_ + rows);
    if (part != nullptr) store.Reserve(end - next_, part);
    // An update waits for the gate, which is held for some microseconds only.
    const int64_t block = std::max<int64_t>(1, kGateBytes / store.bytes_of_row());
    while (next_ < end) {
      const ReaderLock gate(table_.gate_);
      const int64_t stop = std::min(end, next_ + block);
      store.Read(next_, stop, part);
      next_ = stop;
    }
    return true;
  }
  // Freed after the gate is open again: no update waits for it.
  std::unique_ptr<RowSnapshot> ended;
  {
    // All rows have been read, and no thread is copying one with the gate held exclusively.
    const WriterLock gate(table_.gate_);
    store.TakeCopies(part);
    ended = store.EndSnapshot();
  }
  if (status_.ok()) status_ = ended->status().WithPrefix(StrCat("table '", table_.options_.name, "': "));
  return false;
}

bool Snapshot::Next(int64_t rows, SnapshotPart* part) {
  const bool admitted = reads_ == Reads::kAdmitted;
  if (part != nullptr) {
    part->admitted = admitted;
    part->rows.Clear();
  }
  if (reads_ == Reads::kNothing) return false;
  RowStore* store = admitted ? table_.admitted_.get() : table_.candidates_.get();
  if (store != nullptr && ReadStore(*store, rows, part == nullptr ? nullptr : &part->rows)) return true;
  next_ = 0;
  reads_ = admitted ? Reads::kCandidates : Reads::kNothing;
  if (reads_ != Reads::kNothing) return true;
  const WriterLock gate(table_.gate_);
  table_.snapshot_open_ = false;
  return true;
}

Status Snapshot::Commit() {
  if (reads_ != Reads::kNothing)
    return FailedPrecondition(StrCat("table '", table_.options_.name, "': a snapshot is not read to its end"));
  LOCKSTEP_RETURN_IF_ERROR(status_);
  committed_ = true;
  return OkStatus();
}

Snapshot::~Snapshot() {
  // Rows that have not been read are marked too, because the mark has one meaning for all rows.
  while (Next(1 << 16, nullptr)) {
  }
  if (committed_) return;
  const MutexLock lock(table_.removed_mutex_);
  table_.changes_known_ = false;
  table_.removed_ = {};
}

}  // namespace lockstep
