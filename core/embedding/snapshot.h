#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/embedding/dynamic_table.h"

namespace lockstep {

// A table as it is at one moment, read piece by piece while training goes on: keys, rows, slots, counts and filter all
// belong to the moment at which the snapshot began.
//
//   LOCKSTEP_ASSIGN_OR_RETURN(auto snapshot, Snapshot::Begin(table, Snapshot::Kind::kFull));
//   Write(snapshot->removed()), Write(snapshot->filter());
//   SnapshotPart part;
//   while (snapshot->Next(65536, &part)) Write(part);
//   ... all is on disk ...
//   snapshot->Commit();
//
// It begins when running updates and lookups have ended, and takes no time for the rows; only the counters of a Bloom
// filter are copied, and changes are counted. Rows that training changes before they have been read are copied aside by
// who changes them, and come with the next part. So a part takes memory for the rows that are asked for, and what lies
// aside for those that were changed since the last part: less than the table in any case, little where parts are read
// steadily.
//
// An incremental snapshot, kChanges, has the keys that were seen, updated or inserted since the moment of the last
// snapshot of either kind, or since the table was made, and the keys that went. It builds on what that one holds:
// remove removed() from it, then put the parts over it (DynamicTable::Restore). The table has `track_changes` for it,
// or `TrackChanges`.
//
// For one thread, while all threads use the table. One at a time for a table, which outlives it.
struct SnapshotPart {
  bool admitted = true;  // false: keys that are counted until they are admitted; without rows and slots
  TableRows rows;
};

class Snapshot {
 public:
  enum class Kind : uint8_t { kFull, kChanges };

  // FAILED_PRECONDITION while another snapshot of the table is read; for kChanges without `track_changes`, or where the
  // last snapshot was not committed: what changed before it is not known then, and the next one has to be full.
  static Result<std::unique_ptr<Snapshot>> Begin(DynamicTable& table, Kind kind);
  // Without Commit, what was read is taken for lost.
  ~Snapshot();

  // The next rows of the snapshot, in no particular order: looks at `rows` rows, some of which may not belong to it.
  // False when there are no more. Parts may be empty.
  bool Next(int64_t rows, SnapshotPart* part);

  // Keys that went since the last moment, kChanges alone. Some may have come again: they are among the rows.
  std::span<const int64_t> removed() const { return removed_; }
  // The counters of the Bloom filter at the moment; empty where there is none.
  std::span<const uint8_t> filter() const { return filter_; }
  // How far eviction had got at the moment.
  const EvictionSweep& sweep() const { return sweep_; }
  // How many keys come. For kFull that is known; for kChanges they are counted when the snapshot begins, by a look at
  // one byte for each row of the table.
  int64_t admitted_count() const { return admitted_count_; }
  int64_t candidate_count() const { return candidate_count_; }

  // What was read is safe: the next incremental snapshot may build on it. All parts have been read by then:
  // FAILED_PRECONDITION otherwise.
  Status Commit();

 private:
  explicit Snapshot(DynamicTable& table) : table_(table) {}
  // The rows of one kind, from next_ on; false when there are no more.
  bool ReadStore(RowStore& store, int64_t rows, TableRows* part);

  DynamicTable& table_;
  std::vector<int64_t> removed_;
  std::vector<uint8_t> filter_;
  EvictionSweep sweep_;
  int64_t admitted_count_ = 0, candidate_count_ = 0;
  int64_t ends_[2] = {0, 0};  // numbers of rows at the moment, of admitted keys and candidates
  int store_ = 0;             // 0: admitted keys are read, 1: candidates, 2: all have been
  int64_t next_ = 0;          // the next row of it
  bool committed_ = false;
};

}  // namespace lockstep
