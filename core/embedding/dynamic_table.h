#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/base/parallel.h"
#include "core/embedding/admission.h"
#include "core/embedding/epochs.h"
#include "core/embedding/eviction.h"
#include "core/embedding/gate.h"
#include "core/embedding/index.h"
#include "core/embedding/initial.h"
#include "core/embedding/optimizer/update.h"
#include "core/embedding/row_store.h"

namespace lockstep {

class DynamicTable;
class Snapshot;

struct DynamicTableOptions {
  std::string name;                  // for messages, and part of what initial values are drawn from
  int64_t dim = 0;                   // D
  DType row_type = DType::kFloat32;  // kFloat32, kFloat16 or kBFloat16
  InitialOptions initial;            // its seed is that of stochastic rounding as well
  // Each element of the row that keys without a row read: in Resolve those that are not admitted, in Lookup unseen
  // ones as well. One value for all keys: a program without this engine can serve the table and read the same.
  float default_value = 0;
  AdmissionOptions admission;
  EvictionOptions eviction;
  bool record_frequency = false;  // how often keys were seen: 4 bytes a key
  bool record_version = false;    // the step in which keys were last seen: 8 bytes a key
  // For incremental snapshots: 1 bit a key, and 8 bytes for every key that goes between two snapshots.
  bool track_changes = false;
  int64_t expected_keys = 0;  // with so many the index doesn't grow; rows need no such hint

  Status Validate() const;
};

// One training step, as a table needs to know it.
struct StepInfo {
  int64_t step = 0;
  uint32_t seconds = 0;  // of the caller's clock, for seconds_to_live
};

// How rows are restored.
struct RestoreOptions {
  bool admitted = true;  // false: keys that are counted; nothing happens where the table doesn't count
  // Only these keys, so that every worker may be given all parts, whoever saved them; null: all.
  std::function<bool(int64_t key)> owns = nullptr;
  StepInfo now;          // stands for versions and times that the part doesn't have
  bool changed = false;  // whether the next incremental snapshot has them: not if it builds on what they come from
};

// The rows that a batch of keys was resolved to. As long as it lives, these rows are nobody else's: Evict leaves their
// keys alone, and should a key go all the same (Remove), its row is not given to another key, so an update by this
// batch is at worst without effect. Movable; the table outlives it. Thread-compatible.
class ResolvedKeys {
 public:
  ResolvedKeys() = default;
  ResolvedKeys(ResolvedKeys&&) noexcept = default;
  ResolvedKeys& operator=(ResolvedKeys&& other) noexcept;
  ~ResolvedKeys();

  // [N]: the row of each key, kNoRow for those that are not admitted.
  std::span<const uint32_t> rows() const { return rows_ == nullptr ? std::span<const uint32_t>() : *rows_; }

 private:
  friend class DynamicTable;
  DynamicTable* table_ = nullptr;
  std::unique_ptr<std::vector<uint32_t>> rows_;
  Epochs::Guard guard_;
};

// A table of embeddings that grows with its keys, in one process: any int64 is a key (string keys: string_keys.h), its
// row has D weights and a row of D for each optimizer slot. The parts: an index from keys to row numbers (index.h),
// rows and slots in slabs under these numbers (slab.h), admission and eviction, snapshots (snapshot.h).
//
// A training step:
//
//   Result<ResolvedKeys> batch = table.Resolve(keys, {step, now}, rows, parallel);      // inserts, counts, reads
//   ... forward and backward ...
//   table.Update(*batch, gradients, rule, slots, step, parallel);                       // looks nothing up again
//   table.Evict({step, now});
//
// and evaluation, which changes nothing:
//
//   table.Lookup(keys, rows, parallel);
//
// Letters: N keys of a call, fewer than 2^32, duplicates allowed; D the dimension.
//
// Threads. All methods may be called at any time, by any thread, with any `parallel` that keeps its promise
// (base/parallel.h).
//   - Lookup, Resolve, Evict, Remove, snapshots and the counters' getters run at once. Searching keys takes no locks;
//     inserting one locks a 64th of the index. What they find is what was there at some moment during the call.
//   - Update, AddSlot, Restore, Export and the beginning of a snapshot change or read rows as a whole: they wait for
//   the
//     others to end, and those that come meanwhile wait for them. So no lookup sees half an update.
// In what order threads insert keys decides their row numbers and nothing else: values, frequencies, versions, what is
// admitted and evicted are the same in every run that makes the same calls one after another.
class DynamicTable {
 public:
  // INVALID_ARGUMENT for options that are not valid, RESOURCE_EXHAUSTED without memory.
  static Result<std::unique_ptr<DynamicTable>> Create(const DynamicTableOptions& options);
  ~DynamicTable();

  const DynamicTableOptions& options() const { return options_; }

  // The keys' rows, inserting keys that are admitted and not there; all are counted. `counts`, [N] or empty, says how
  // often each key is seen (for ids whose duplicates have been dropped), otherwise once. out: [N, D] float32 or null:
  // the rows as they are before the step, default_value for keys that are not admitted.
  // RESOURCE_EXHAUSTED without memory; some keys may have been inserted and counted then.
  Result<ResolvedKeys> Resolve(std::span<const int64_t> keys, const StepInfo& step, float* out,
                               const ParallelFor& parallel, std::span<const int32_t> counts = {});

  // The keys' rows, without a trace; default_value for keys that have none. out: [N, D] float32.
  void Lookup(std::span<const int64_t> keys, float* out, const ParallelFor& parallel) const;

  // Makes the slot `name`, or finds it; its number. Rows that are there begin with `initial`, too.
  // FAILED_PRECONDITION for a slot that is there with another initial value; but where that was `provisional`, as what
  // a checkpoint says of a slot before its optimizer comes, new rows begin with `initial` from now on.
  Result<int> AddSlot(const std::string& name, float initial, bool provisional = false);
  // Lets a slot go, as its optimizer has; whether it was there. The next slot that is new takes its memory, and its
  // number, unless a snapshot is being read that may want its values. The next incremental snapshot is declined.
  bool DropSlot(const std::string& name);
  // By their numbers; one that was dropped has no name.
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
  // rounding. With `all_rows`, all others are updated with a gradient of zero (adam.h).
  // INVALID_ARGUMENT for a rule of another row type, or other slots than the rule's.
  Status Update(const ResolvedKeys& batch, const float* gradients, const UpdateRule& rule, std::span<const int> slots,
                int64_t step, const ParallelFor& parallel, bool all_rows = false) {
    return Update(batch.rows(), gradients, rule, slots, step, parallel, all_rows);
  }
  // The same by row numbers of batches that live, several one behind the other perhaps. INVALID_ARGUMENT also for a
  // number that no row ever had.
  Status Update(std::span<const uint32_t> numbers, const float* gradients, const UpdateRule& rule,
                std::span<const int> slots, int64_t step, const ParallelFor& parallel, bool all_rows = false);

  // Weights (slot -1) or a slot of rows, by their numbers: for optimizers that are not among the rules. values: [N, D];
  // of kNoRow, zeros are read, and what is written is dropped. 16-bit weights are rounded stochastically, as Update
  // does. INVALID_ARGUMENT for a number that no row ever had, or a slot that is not there.
  Status ReadRows(std::span<const uint32_t> numbers, int slot, float* values, const ParallelFor& parallel) const;
  Status WriteRows(std::span<const uint32_t> numbers, int slot, const float* values, int64_t step,
                   const ParallelFor& parallel);

  // The batch's keys have been seen at this moment, and not at the one that Resolve was told: for callers who learn the
  // step afterwards. Their frequencies stay.
  void Stamp(const ResolvedKeys& batch, const StepInfo& now);

  // Lets keys go by the eviction options; the keys that went. keys_per_call keys are looked at.
  std::vector<int64_t> Evict(const StepInfo& now);
  // Lets these keys go; how many were there, admitted or counted.
  int64_t Remove(std::span<const int64_t> keys);

  // Admitted keys.
  int64_t total_count() const { return admitted_->live(); }
  // Whether a key is there, admitted or counted exactly.
  bool Contains(int64_t key) const;
  // Keys that are counted exactly and not admitted yet.
  int64_t candidate_count() const { return candidates_ == nullptr ? 0 : candidates_->live(); }
  // All admitted keys at one moment, in no particular order.
  TableRows Export() const;
  // [N]; 0 for keys that are not there and not counted. Also of keys that are not admitted yet. FAILED_PRECONDITION
  // where it is not recorded.
  Status GetFrequency(std::span<const int64_t> keys, int64_t* frequencies) const;
  Status GetVersion(std::span<const int64_t> keys, int64_t* versions) const;

  // Puts rows in, over those that are there: parts of a snapshot, of this or any other table of the same dimension and
  // row type, the slots in the order of this table's. What a part doesn't have begins anew. INVALID_ARGUMENT for a part
  // of another shape.
  Status Restore(const TableRows& part, const RestoreOptions& options);
  // The same for the counters of a Bloom filter; those of several workers may be given one after another. Does nothing
  // in a table without a filter.
  Status RestoreFilter(std::span<const uint8_t> counters);

  // How far eviction has got, and to go on there as the table that said so.
  EvictionSweep sweep() const;
  Status RestoreSweep(const EvictionSweep& sweep);

  // Records changes from now on, as the option `track_changes` does. In a table that is not empty the next snapshot has
  // to be full.
  void TrackChanges();
  // Whether an incremental snapshot could be begun now.
  bool changes_known();

  // Memory of rows, slots, counts, index and filter.
  int64_t bytes() const;

 private:
  friend class Snapshot;
  friend class ResolvedKeys;
  class Inserter;
  struct Batch;

  explicit DynamicTable(const DynamicTableOptions& options);

  // The values of the index: a row of admitted_, or with this bit one of candidates_.
  static constexpr uint32_t kCandidate = 0x80000000;
  static bool IsRow(uint32_t value) { return (value & kCandidate) == 0; }
  static bool IsCandidate(uint32_t value) { return (value & kCandidate) != 0 && value != KeyIndex::kAbsent; }
  RowStore& StoreOf(uint32_t value) const { return IsRow(value) ? *admitted_ : *candidates_; }
  static uint32_t NumberOf(uint32_t value) { return value & ~kCandidate; }

  // Resolve, for the places [begin, end) of a batch: those that are there or need no judgement, and then those that
  // were counted and have to be judged.
  Status ResolveRange(const Batch& batch, int64_t begin, int64_t end, std::vector<uint32_t>* unjudged);
  Status JudgeRange(const Batch& batch, std::span<const uint32_t> places);
  Status ResolveNew(const Batch& batch, int64_t place, uint32_t value, Inserter* inserter,
                    std::vector<uint32_t>* unjudged);

  template <typename CountOf>
  void GetCounts(std::span<const int64_t> keys, int64_t* counts, CountOf&& count_of) const;
  Status CheckNumbers(std::span<const uint32_t> numbers) const;
  Status CheckSlot(int slot) const;

  // Restoring (snapshot.cc).
  struct Gone;
  Status CheckShape(const TableRows& part, bool admitted) const;
  Status RestoreRow(const TableRows& part, int64_t i, const RestoreOptions& options, Inserter* rows, Gone* gone);

  // Takes the key out if it has this value; adds what has to be reclaimed to the lists.
  struct Gone {
    std::vector<uint32_t> rows, candidates;
    std::vector<int64_t> keys;
  };
  void TakeOut(int64_t key, uint32_t value, Gone* gone);
  void Reclaim(Gone gone);
  // Eviction (table_eviction.cc).
  struct Looked;
  std::vector<bool> PinnedRows() const;
  int64_t MostKeys() const;
  void Age(uint32_t row);
  bool HasToGo(uint32_t value, const StepInfo& now) const;
  void LookAt(const StepInfo& now, const std::vector<bool>& pinned, Gone* gone);

  const DynamicTableOptions options_;
  const InitialValues initial_;
  mutable Gate gate_;  // held for reading or changing rows as the class comment says
  KeyIndex index_;
  std::unique_ptr<RowStore> admitted_;
  std::unique_ptr<RowStore> candidates_;  // null where keys are not counted exactly
  std::unique_ptr<CountingBloomFilter> filter_;
  mutable Epochs row_epochs_;    // numbers of rows are given away again when no batch knows them
  std::vector<Slot> slots_;      // guarded by gate_
  bool tracks_changes_ = false;  // guarded by gate_

  mutable std::mutex batches_mutex_;
  std::set<const std::vector<uint32_t>*> batches_;     // guarded by batches_mutex_: the rows of living ResolvedKeys
  std::unique_ptr<std::vector<uint32_t>> spare_rows_;  // guarded by batches_mutex_: of the last batch that was let go

  mutable std::mutex evict_mutex_;
  EvictionSweep sweep_;  // guarded by evict_mutex_

  // Of incremental snapshots.
  std::mutex removed_mutex_;
  std::vector<int64_t> removed_;  // guarded by removed_mutex_: keys that went since the last moment
  bool changes_known_ = true;     // guarded by removed_mutex_: false after a snapshot that was not kept
  bool snapshot_open_ = false;    // guarded by gate_
};

}  // namespace lockstep
