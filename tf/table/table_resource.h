#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/parallel.h"
#include "core/base/status.h"
#include "core/embedding/dynamic_table.h"
#include "core/embedding/snapshot.h"
#include "core/embedding/string_keys.h"
#include "core/sharding/placement.h"
#include "core/telemetry/table_counters.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace lockstep {

// A slot of an optimizer in a dynamic table: D float32 beside each row of weights.
struct SlotSpec {
  const char* name;  // the optimizer's name and its own name of the slot, such as "Adagrad/accumulator"
  float initial;     // its value before the row's first update
};

// A dynamic table (core/embedding/dynamic_table.h) as a resource of TensorFlow: the object that the handle of a
// DynamicVariable names. It holds the state between the steps of a graph and the table:
//
//   - the strings of string keys (core/embedding/string_keys.h);
// - the clock: the step in which lookups are counted. EndStep sets it, so that no lookup has to read the program's
//   global step, and programs without a global step have steps as well;
// - the batches of the present step and of the one before. Row numbers pass through the graph as plain tensors, and
//   rows must belong to the same keys until all optimizers have updated them. So keys of a step are never evicted when
//   it ends, and a gradient may be applied until the end of the next step. A program that never ends a step (because
//   its gradients are not applied) keeps the last kMostBatches.
//
// Keys are tensors of any shape: int64, int32, or strings if the table has string keys. Letters: N keys, D the
// dimension. Thread-safe.
class DynamicTableResource : public tensorflow::ResourceBase {
 public:
  // The row number of a key that is not admitted, in tensors; in the core it is kNoRow.
  static constexpr int64_t kNotAdmitted = -1;

  // INVALID_ARGUMENT for options that are not valid, RESOURCE_EXHAUSTED without memory.
  static Result<DynamicTableResource*> Create(const DynamicTableOptions& options, bool string_keys,
                                              const KeyPlacement& placement);

  DynamicTable& table() const { return *table_; }
  int64_t dim() const { return table_->options().dim; }
  const std::string& name() const { return table_->options().name; }
  TableCounters& counters() const { return counters_; }
  // Returns which keys the workers of a job own: routes send keys there, and a restore keeps its own.
  const KeyPlacement& placement() const { return placement_; }
  // Returns the string keys, or null for a table of numbers.
  StringKeys* strings() const { return strings_.get(); }

  // Returns INVALID_ARGUMENT for keys of another type than the table's.
  Status CheckKeys(const tensorflow::Tensor& keys) const;

  // Finds, counts, inserts and reads, in training. times: int64 [N], how often each key is seen, or empty: once. rows:
  // [N, D]; numbers: [N], kNotAdmitted for keys without a row. INVALID_ARGUMENT for another number of times.
  Status Resolve(const tensorflow::Tensor& keys, const tensorflow::Tensor& times, float* rows, int64_t* numbers,
                 const ParallelFor& parallel);
  // Reads without changing anything, in evaluation. rows: [N, D].
  Status Lookup(const tensorflow::Tensor& keys, float* rows, const ParallelFor& parallel) const;
  // Writes the keys' row numbers, kNotAdmitted for keys without a row; changes nothing. numbers: [N].
  Status Find(const tensorflow::Tensor& keys, int64_t* numbers, const ParallelFor& parallel) const;
  // Write the recorded numbers; counts: [N].
  Status GetFrequency(const tensorflow::Tensor& keys, int64_t* counts) const;
  Status GetVersion(const tensorflow::Tensor& keys, int64_t* counts) const;
  Status GetSeconds(const tensorflow::Tensor& keys, int64_t* counts) const;

  // Sums gradients of rows and applies the rule once to each (DynamicTable::Update). `numbers`: [N], kNoRow for keys
  // that are not admitted. `gradients`: [N, D]. `slots`: the rule's slots, which are made if they do not exist yet.
  Status Update(std::span<const uint32_t> numbers, const float* gradients, const UpdateRule& rule,
                std::span<const SlotSpec> slots, bool all_rows, const ParallelFor& parallel);

  // Ends a step after an optimizer has updated its rows. It releases the batches of the step before, evicts by the
  // table's options, and sets the clock to `step`, or to the next step if none is given.
  //
  // A step may have several optimizers, each of which ends it. So a call does nothing if no key was resolved since the
  // last call, unless its `step` is later than the clock. This distinguishes the steps of a loop in one run, which has
  // a single run number in TensorFlow. Without a loop the lookups of several optimizers may have no order. Then `run`
  // is that number, and the first call of a run counts. Calls without a run are distinguished only by their lookups.
  void EndStep(std::optional<int64_t> step, std::optional<int64_t> run);
  // Evicts by the table's options now, as the end of a step does, and calls use(rows) with the last rows of the evicted
  // keys, in no particular order, while their strings exist. FAILED_PRECONDITION for a table without a budget.
  //
  // last_lookup: only keys of the last lookup stay for sure, instead of the keys of this step and the one before. A
  // gradient by row number of an earlier lookup must not be applied after that.
  Status Evict(bool last_lookup, const std::function<Status(const TableRows& rows)>& use);
  // Removes these keys; returns how many existed.
  Result<int64_t> Remove(const tensorflow::Tensor& keys);
  // Calls DynamicTable::Restore for rows that belong to these keys; fills `part.keys`. New strings get their keys.
  Status Restore(const tensorflow::Tensor& keys, TableRows part, const RestoreOptions& options);
  // Returns the step and time with which lookups are counted now.
  StepInfo now() const;

  // Returns the seed for rounding the next change of rows. It differs each time, because neither part ever decreases.
  int64_t NextRounding() { return (step_.load() << 20) + changes_.fetch_add(1); }
  // Together with the restored rows, it makes a restarted program round exactly like one that was not interrupted.
  struct Clock {
    int64_t step;     // the step in which lookups are counted
    int64_t changes;  // the number of changes of rows
  };
  Clock clock() const { return {step_, changes_}; }
  void set_clock(Clock clock) { step_ = clock.step, changes_ = clock.changes; }

  // Checkpoints (tf/checkpoint/dynamic_table_checkpoint_ops.cc). A checkpoint has an id. Changes are recorded
  // since the last saved or restored checkpoint, checkpoint_id(); a table that was neither saved nor restored has none.
  //
  // Begins a snapshot and keeps it until EndSnapshot. A snapshot left by a failed save is dropped. FAILED_PRECONDITION
  // if a save still reads one.
  Status BeginSnapshot(Snapshot::Kind kind);
  // Declares that the snapshot is read: strings removed since it began may be freed.
  void SnapshotRead();
  // Returns the snapshot to be read; the table keeps it while a reader does. FAILED_PRECONDITION if there is none.
  Result<std::shared_ptr<Snapshot>> snapshot();
  // Declares that the snapshot is safe on the disk, in the checkpoint `checkpoint_id`.
  Status EndSnapshot(int64_t checkpoint_id);
  std::optional<int64_t> checkpoint_id() const;
  void set_checkpoint_id(std::optional<int64_t> checkpoint_id);
  // Drops the snapshot of a failed save, unless another save reads it: the next checkpoint has to be full.
  void DropSnapshot();
  // Removes keys that an incremental checkpoint names; a string is named by its int64 key.
  void RemoveNumbers(std::span<const int64_t> keys);

  // Converts an op's int64 row numbers to the table's. INVALID_ARGUMENT for values that are not row numbers.
  static Result<std::vector<uint32_t>> Numbers(const tensorflow::Tensor& numbers);

  std::string DebugString() const override;
  int64_t MemoryUsed() const override;

 private:
  static constexpr size_t kMostBatches = 256;

  DynamicTableResource(std::unique_ptr<DynamicTable> table, std::unique_ptr<StringKeys> strings,
                       const KeyPlacement& placement);

  // Calls use(keys as int64). Strings are searched, not added.
  template <typename Use>
  Status WithKeys(const tensorflow::Tensor& keys, Use&& use) const;
  // Removes the strings of those `keys` that are not in the table.
  void ForgetStrings(std::span<const int64_t> keys);

  const std::unique_ptr<DynamicTable> table_;
  const std::unique_ptr<StringKeys> strings_;
  const KeyPlacement placement_;
  TableCounters& counters_;  // those of the process for the table's name
  std::atomic<int64_t> step_{0};
  std::atomic<int64_t> changes_{0};  // for stochastic rounding, which draws new numbers for each change

  // Shared: from naming a string's key until the key is resolved. Exclusive: while strings are removed.
  mutable SharedMutex naming_;
  mutable Mutex mutex_;
  std::deque<ResolvedKeys> batches_ LOCKSTEP_GUARDED_BY(mutex_);    // those of this step
  std::deque<ResolvedKeys> before_ LOCKSTEP_GUARDED_BY(mutex_);     // those of the step before
  std::shared_ptr<Snapshot> snapshot_ LOCKSTEP_GUARDED_BY(mutex_);  // destroyed before the table
  bool resolved_ LOCKSTEP_GUARDED_BY(mutex_) = false;            // whether keys were resolved since the last step ended
  std::optional<int64_t> last_run_ LOCKSTEP_GUARDED_BY(mutex_);  // the run in which the last step ended
  std::optional<int64_t> checkpoint_id_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<int64_t> unadmitted_ LOCKSTEP_GUARDED_BY(mutex_);  // keys looked up in this step that are not admitted
};

// Returns the table of input `index`, a handle. FAILED_PRECONDITION if it has not been initialized.
Result<tensorflow::core::RefCountPtr<DynamicTableResource>> TableOf(tensorflow::OpKernelContext* context, int index);

}  // namespace lockstep
