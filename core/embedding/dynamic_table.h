#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/base/fair_shared_mutex.h"
#include "core/base/mutex.h"
#include "core/base/parallel.h"
#include "core/embedding/admission.h"
#include "core/embedding/epochs.h"
#include "core/embedding/eviction.h"
#include "core/embedding/index.h"
#include "core/embedding/initial.h"
#include "core/embedding/optimizer/update.h"
#include "core/embedding/row_store.h"

namespace lockstep {

class DynamicTable;
class Snapshot;

struct DynamicTableOptions {
  std::string name;                  // for messages, and one source of the initial values
  int64_t dim = 0;                   // D
  DType row_type = DType::kFloat32;  // kFloat32, kFloat16 or kBFloat16
  InitialOptions initial;            // its seed is also used for stochastic rounding
  // The value of each element that is read for a key without a row: in Resolve keys that are not admitted, in Lookup
  // also unseen ones. It is one value for all keys, so a program without this engine can serve the table and read the
  // same.
  float default_value = 0;
  AdmissionOptions admission;
  EvictionOptions eviction;
  bool record_frequency = false;  // how often keys were seen: 4 bytes per key
  bool record_version = false;    // the step in which keys were last seen: 8 bytes per key
  bool record_seconds = false;    // the time at which keys were last seen: 4 bytes per key
  // For incremental snapshots: 1 bit per key, and 8 bytes for every key that is removed between two snapshots.
  bool track_changes = false;
  int64_t expected_keys = 0;  // up to here the index does not grow; rows need no such hint

  Status Validate() const;
  // Returns whether the time at which keys were last seen is kept: for seconds_to_live, or because it is wanted.
  bool keeps_seconds() const { return record_seconds || eviction.seconds_to_live.has_value(); }
};

// The parts of a training step that a table needs.
struct StepInfo {
  int64_t step = 0;
  uint32_t seconds = 0;  // on the caller's clock, for seconds_to_live and record_seconds
};

// How rows are restored.
struct RestoreOptions {
  bool admitted = true;  // false: candidates; does nothing if the table does not count
  // Restores only these keys, so that every worker may be given the parts of all workers; null restores all.
  std::function<bool(int64_t key)> owns = nullptr;
  StepInfo now;          // replaces versions and times that the part lacks
  bool changed = false;  // whether the next incremental snapshot has them; false if it builds on their source
};

// The rows of a resolved batch of keys. While this object lives, no other key can get these rows: Evict does not remove
// their keys. If a key is removed nevertheless (Remove), its row is not reused, so an update by this batch has no
// effect at worst. Movable; the table outlives it. Thread-compatible.
class ResolvedKeys {
 public:
  ResolvedKeys() = default;
  ResolvedKeys(ResolvedKeys&&) noexcept = default;
  ResolvedKeys& operator=(ResolvedKeys&& other) noexcept;
  ~ResolvedKeys();

  // Returns [N]: the row of each key, or kNoRow for a key that is not admitted.
  std::span<const uint32_t> rows() const { return rows_ == nullptr ? std::span<const uint32_t>() : *rows_; }

 private:
  friend class DynamicTable;
  DynamicTable* table_ = nullptr;
  std::unique_ptr<std::vector<uint32_t>> rows_;
  Epochs::Guard guard_;
};

// A dynamic table of embeddings in one process. Any int64 is a key (string keys: string_keys.h). Its row has D weights,
// and D values for each optimizer slot. The parts are an index from keys to row numbers (index.h), rows and slots in
// slabs under these numbers (slab.h), admission and eviction, and snapshots (snapshot.h).
//
// A training step:
// ```cpp
// Result<ResolvedKeys> batch = table.Resolve(keys, {step, now}, rows, parallel);      // inserts, counts, reads
// ... forward and backward ...
// table.Update(*batch, gradients, rule, slots, step, parallel);                       // looks nothing up again
// table.Evict({step, now});
// ```
// Evaluation changes nothing:
// ```cpp
// table.Lookup(keys, rows, parallel);
// ```
// Letters: N keys of a call, fewer than 2^32, duplicates allowed; D the dimension.
//
// Threads. Any thread may call any method at any time, with any `parallel` that keeps its promise (base/parallel.h).
// - Lookup, Resolve, Evict, Remove, snapshots and the counters' getters run concurrently. Searching keys takes no
//   locks; inserting one locks a 64th of the index. They find the state of some moment during the call.
// - Update, AddSlot, Restore, Export and the beginning of a snapshot change or read rows as a whole. They wait for
//   running calls to end, and later calls wait for them. So no lookup sees half an update.
// The order in which threads insert keys decides only their row numbers. Values, frequencies, versions, admission and
// eviction are the same in every run that makes the same calls one after another.
class DynamicTable {
 public:
  // INVALID_ARGUMENT for options that are not valid, RESOURCE_EXHAUSTED without memory.
  static Result<std::unique_ptr<DynamicTable>> Create(const DynamicTableOptions& options);
  ~DynamicTable();

  const DynamicTableOptions& options() const { return options_; }

  // Returns the keys' rows, inserts keys that are admitted and missing, and counts all keys. `counts`, [N] or empty,
  // tells how often each key is seen (for ids without their duplicates); by default once. `out`, [N, D] float32 or
  // null, gets the rows before the step, and default_value for keys that are not admitted. RESOURCE_EXHAUSTED without
  // memory; some keys may then be inserted and counted.
  Result<ResolvedKeys> Resolve(std::span<const int64_t> keys, const StepInfo& step, float* out,
                               const ParallelFor& parallel, std::span<const int32_t> counts = {});

  // Reads the keys' rows without changing anything; default_value for keys that have none. out: [N, D] float32.
  void Lookup(std::span<const int64_t> keys, float* out, const ParallelFor& parallel) const;

  // Writes the keys' row numbers, kNoRow for keys without a row; changes nothing. They belong to the keys as long as a
  // living batch has them. numbers: [N].
  void Find(std::span<const int64_t> keys, uint32_t* numbers, const ParallelFor& parallel) const;

  // Makes or finds the slot `name` and returns its number. Existing rows begin with `initial`, too. FAILED_PRECONDITION
  // for a slot with another initial value, unless that value was `provisional`: a checkpoint's, restored before its
  // optimizer exists. Then new rows begin with `initial` from now on.
  Result<int> AddSlot(const std::string& name, float initial, bool provisional = false);
  // Drops a slot whose optimizer is gone; returns whether it existed. The next new slot takes its memory and its
  // number, unless a snapshot is being read that may need its values. The next incremental snapshot is refused.
  bool DropSlot(const std::string& name);
  // Returns the slots' names by their numbers; a dropped slot has no name.
  std::vector<std::string> slot_names() const;
  struct Slot {
    std::string name;
    float initial = 0;
    bool provisional = false;
    bool dropped = false;
  };
  std::vector<Slot> slots() const;

  // Sums the gradients ([N, D]) of each row, in the order of the batch, and applies the rule once. slots: the numbers
  // of the rule's slots, in its order. Gradients of keys that are not admitted are dropped. `step` is for stochastic
  // rounding. With `all_rows`, all other rows are updated with a gradient of zero (adam.h). INVALID_ARGUMENT for a rule
  // of another row type, or with other slots than the rule's.
  Status Update(const ResolvedKeys& batch, const float* gradients, const UpdateRule& rule, std::span<const int> slots,
                int64_t step, const ParallelFor& parallel, bool all_rows = false) {
    return Update(batch.rows(), gradients, rule, slots, step, parallel, all_rows);
  }
  // Does the same by row numbers of living batches, of several in a row if needed. INVALID_ARGUMENT also for a number
  // that no row ever had.
  Status Update(std::span<const uint32_t> numbers, const float* gradients, const UpdateRule& rule,
                std::span<const int> slots, int64_t step, const ParallelFor& parallel, bool all_rows = false);

  // Read and write a slot of rows, or without a slot their weights, by their numbers: for optimizers that are not among
  // the rules. values: [N, D]. For kNoRow, zeros are read, and written values are dropped. 16-bit weights are rounded
  // stochastically, as Update does. INVALID_ARGUMENT for a number that no row ever had, or a slot that does not exist.
  Status ReadRows(std::span<const uint32_t> numbers, std::optional<int> slot, float* values,
                  const ParallelFor& parallel) const;
  Status WriteRows(std::span<const uint32_t> numbers, std::optional<int> slot, const float* values, int64_t step,
                   const ParallelFor& parallel);

  // Sets the moment at which the batch's keys were seen to `now` instead of Resolve's, for callers that learn the step
  // afterwards. Frequencies stay.
  void Stamp(const ResolvedKeys& batch, const StepInfo& now);

  // Removes keys by the eviction options and returns them. Examines keys_per_call keys, and more to keep the budget.
  // `evicted`, or null, gets the last rows of those that were admitted, in no particular order.
  std::vector<int64_t> Evict(const StepInfo& now, TableRows* evicted = nullptr);
  // Removes these keys; returns how many of them existed, admitted or candidates.
  int64_t Remove(std::span<const int64_t> keys);

  // Returns the number of admitted keys.
  int64_t total_count() const { return admitted_->live(); }
  // Returns whether a key exists, admitted or counted exactly.
  bool Contains(int64_t key) const;
  // Returns the number of candidates: keys that are counted exactly and not admitted yet.
  int64_t candidate_count() const { return candidates_ == nullptr ? 0 : candidates_->live(); }
  // Returns all admitted keys at one moment, in no particular order.
  TableRows Export() const;
  // Write [N] numbers, also for keys that are not admitted yet; 0 for keys that are neither there nor counted.
  // FAILED_PRECONDITION if they are not recorded.
  Status GetFrequency(std::span<const int64_t> keys, int64_t* frequencies) const;
  Status GetVersion(std::span<const int64_t> keys, int64_t* versions) const;
  Status GetSeconds(std::span<const int64_t> keys, int64_t* seconds) const;

  // Inserts or overwrites rows: parts of a snapshot of a table with the same dimension and row type, with the slots in
  // the order of this table's. Values that a part lacks are reset to their initial values. INVALID_ARGUMENT for a part
  // of another shape.
  Status Restore(const TableRows& part, const RestoreOptions& options);
  // Does the same for the counters of a Bloom filter; the counters of several workers may be given one after another.
  // Does nothing in a table without a filter.
  Status RestoreFilter(std::span<const uint8_t> counters);

  // Return and restore the progress of eviction, so that a restored table continues where the saved one was.
  EvictionSweep sweep() const;
  Status RestoreSweep(const EvictionSweep& sweep);

  // Records changes from now on, like the option `track_changes`. If the table is not empty, the next snapshot has to
  // be full.
  void TrackChanges();
  // Returns whether an incremental snapshot can begin now.
  bool changes_known();

  // Returns the memory of rows, slots, counts, index and filter.
  int64_t bytes() const;

 private:
  friend class Snapshot;
  friend class ResolvedKeys;
  class Inserter;
  struct Batch;

  explicit DynamicTable(const DynamicTableOptions& options);

  // The values of the index: a row of admitted_, or with this bit set a row of candidates_.
  static constexpr uint32_t kCandidate = 0x80000000;
  static bool IsRow(uint32_t value) { return (value & kCandidate) == 0; }
  static bool IsCandidate(uint32_t value) { return (value & kCandidate) != 0 && value != KeyIndex::kAbsent; }
  RowStore& StoreOf(uint32_t value) const { return IsRow(value) ? *admitted_ : *candidates_; }
  static uint32_t NumberOf(uint32_t value) { return value & ~kCandidate; }

  // Implement Resolve for the places [begin, end) of a batch: ResolveRange for keys that exist or need no judgement,
  // then JudgeRange for those that were counted and have to be judged.
  Status ResolveRange(const Batch& batch, int64_t begin, int64_t end, std::vector<uint32_t>* unjudged)
      LOCKSTEP_REQUIRES_SHARED(gate_);
  Status JudgeRange(const Batch& batch, std::span<const uint32_t> places) LOCKSTEP_REQUIRES_SHARED(gate_);
  Status ResolveNew(const Batch& batch, int64_t place, uint32_t value, Inserter* inserter,
                    std::vector<uint32_t>* unjudged) LOCKSTEP_REQUIRES_SHARED(gate_);

  template <typename CountOf>
  void GetCounts(std::span<const int64_t> keys, int64_t* counts, CountOf&& count_of) const;
  Status CheckNumbers(std::span<const uint32_t> numbers) const LOCKSTEP_REQUIRES_SHARED(gate_);
  Status CheckSlot(int slot) const LOCKSTEP_REQUIRES_SHARED(gate_);

  // Restoring (snapshot.cc).
  struct Removed;
  Status CheckShape(const TableRows& part, bool admitted) const LOCKSTEP_REQUIRES_SHARED(gate_);
  Status RestoreRow(const TableRows& part, int64_t i, const RestoreOptions& options, Inserter* rows, Removed* removed)
      LOCKSTEP_REQUIRES(gate_);

  // Removes the key if it has this value; adds what has to be reclaimed to the lists.
  struct Removed {
    std::vector<uint32_t> rows, candidates;
    std::vector<int64_t> keys;
  };
  void RemoveKey(int64_t key, uint32_t value, Removed* removed) LOCKSTEP_REQUIRES_SHARED(gate_);
  void Reclaim(Removed removed) LOCKSTEP_REQUIRES_SHARED(gate_) LOCKSTEP_EXCLUDES(removed_mutex_);
  // Eviction (table_eviction.cc).
  struct Examined;
  std::vector<bool> PinnedRows() const;
  int64_t MostKeys() const;
  void Age(uint32_t row);
  bool IsExpired(uint32_t value, const StepInfo& now) const;
  void LookAt(const StepInfo& now, const std::vector<bool>& pinned, Removed* removed) LOCKSTEP_REQUIRES_SHARED(gate_)
      LOCKSTEP_REQUIRES(evict_mutex_);

  const DynamicTableOptions options_;
  const InitialValues initial_;
  mutable FairSharedMutex gate_;  // held to read or change rows, see the class comment
  KeyIndex index_;
  std::unique_ptr<RowStore> admitted_;
  std::unique_ptr<RowStore> candidates_;  // null if keys are not counted exactly
  std::unique_ptr<CountingBloomFilter> filter_;
  mutable Epochs row_epochs_;  // a row's number is reused when no batch knows it
  std::vector<Slot> slots_ LOCKSTEP_GUARDED_BY(gate_);
  bool tracks_changes_ LOCKSTEP_GUARDED_BY(gate_) = false;

  mutable Mutex batches_mutex_;
  // The rows of living ResolvedKeys.
  std::set<const std::vector<uint32_t>*> batches_ LOCKSTEP_GUARDED_BY(batches_mutex_);
  // The rows of the last destroyed batch.
  std::unique_ptr<std::vector<uint32_t>> spare_rows_ LOCKSTEP_GUARDED_BY(batches_mutex_);

  mutable Mutex evict_mutex_;
  EvictionSweep sweep_ LOCKSTEP_GUARDED_BY(evict_mutex_);

  // For incremental snapshots.
  Mutex removed_mutex_;
  std::vector<int64_t> removed_ LOCKSTEP_GUARDED_BY(removed_mutex_);  // keys removed since the last moment
  bool changes_known_ LOCKSTEP_GUARDED_BY(removed_mutex_) = true;     // false after a snapshot without commit
  bool snapshot_open_ LOCKSTEP_GUARDED_BY(gate_) = false;
};

}  // namespace lockstep
