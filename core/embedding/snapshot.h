#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/embedding/dynamic_table.h"

namespace lockstep {

// A table at one moment, read piece by piece while training continues. Keys, rows, slots, counts and filter are as they
// were when the snapshot began.
// ```cpp
// LOCKSTEP_ASSIGN_OR_RETURN(auto snapshot, Snapshot::Begin(table, Snapshot::Kind::kFull));
// Write(snapshot->removed()), Write(snapshot->filter());
// SnapshotPart part;
// while (snapshot->Next(65536, &part)) Write(part);
// ... all is on disk ...
// snapshot->Commit();
// ```
// It begins when running updates and lookups have ended. The rows take no time then; only the counters of a Bloom
// filter are copied, and changes are counted. If training changes a row that has not been read, the changing thread
// copies it aside first (core/snapshot/row_snapshot.h), and it comes with the next part. So a part takes memory for the
// requested rows and for the rows copied aside since the last part. This is less than the table in any case, and little
// if parts are read steadily. Without memory for a copy the snapshot is lost (status()), and the change continues.
//
// An incremental snapshot, kChanges, has the keys that were seen, updated or inserted since the last snapshot of either
// kind, or since the table was made, and the keys that were removed. It builds on that snapshot: remove removed() from
// it, then restore the parts over it (DynamicTable::Restore). It needs the table's option `track_changes`, or
// TrackChanges.
//
// One thread reads it, while all threads use the table. A table has one snapshot at a time and outlives it.
struct SnapshotPart {
  bool admitted = true;  // false: candidates, without rows and slots
  TableRows rows;
};

class Snapshot {
 public:
  enum class Kind : uint8_t { kFull, kChanges };

  // Begins a snapshot. FAILED_PRECONDITION while another snapshot of the table is read. For kChanges also without
  // `track_changes`, or if the last snapshot was not committed: earlier changes are then unknown, and the next one has
  // to be full. RESOURCE_EXHAUSTED without memory.
  static Result<std::unique_ptr<Snapshot>> Begin(DynamicTable& table, Kind kind);
  // Without Commit, the data that was read counts as lost.
  ~Snapshot();

  // Returns the next rows of the snapshot, in no particular order. It examines `rows` rows, of which some may not
  // belong to it, so parts may be empty. Returns false at the end.
  bool Next(int64_t rows, SnapshotPart* part);

  // Returns the keys removed since the last snapshot, for kChanges only. Some may have come back; they are among the
  // rows.
  std::span<const int64_t> removed() const { return removed_; }
  // Returns the counters of the Bloom filter; empty if there is none.
  std::span<const uint8_t> filter() const { return filter_; }
  // Returns the slots of its rows: a slot that comes later is not among them.
  const std::vector<DynamicTable::Slot>& slots() const { return slots_; }
  // Returns the progress of eviction.
  const EvictionSweep& sweep() const { return sweep_; }
  // Return the number of keys to come. For kFull it is known. For kChanges it is counted when the snapshot begins, by
  // reading one byte for each row of the table.
  int64_t admitted_count() const { return admitted_count_; }
  int64_t candidate_count() const { return candidate_count_; }

  // Returns RESOURCE_EXHAUSTED if memory was missing to copy a row before it changed: do not use the parts. To be asked
  // after the last part.
  const Status& status() const { return status_; }
  // Declares that the data is safe: the next incremental snapshot may build on it. FAILED_PRECONDITION if parts are
  // unread; or status().
  Status Commit();

 private:
  // The rows that are read next; the first two are also indices.
  enum class Reads : uint8_t { kAdmitted, kCandidates, kNothing };

  explicit Snapshot(DynamicTable& table) : table_(table) {}
  // Reads rows of one kind, from next_ on; returns false after the last.
  bool ReadStore(RowStore& store, int64_t rows, TableRows* part);

  DynamicTable& table_;
  std::vector<int64_t> removed_;
  std::vector<uint8_t> filter_;
  std::vector<DynamicTable::Slot> slots_;
  EvictionSweep sweep_;
  int64_t admitted_count_ = 0, candidate_count_ = 0;
  int64_t ends_[2] = {0, 0};  // the rows at the begin: of admitted keys, of candidates
  Reads reads_ = Reads::kAdmitted;
  int64_t next_ = 0;  // the next row of these
  Status status_;     // of the stores that have been read
  bool committed_ = false;
};

}  // namespace lockstep
