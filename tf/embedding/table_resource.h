#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "core/base/parallel.h"
#include "core/base/status.h"
#include "core/embedding/dynamic_table.h"
#include "core/embedding/snapshot.h"
#include "core/embedding/string_keys.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace lockstep {

// A dynamic table (core/embedding/dynamic_table.h) as a resource of TensorFlow's: what `handle` of a DynamicVariable
// names. Holds what lies between steps of a graph and the table:
//
//   - the strings of string keys (core/embedding/string_keys.h);
//   - the clock: the step that lookups are counted in. EndStep sets it, so that no lookup has to read the program's
//     global step, and programs without one have steps as well;
//   - the batches of the present step and of the one before: row numbers travel through the graph as plain tensors, and
//     rows must stay those keys' until all optimizers have updated them. So keys of a step never go at its end, and a
//     gradient may be applied until the end of the next step. A program that never comes to an end of a step (a
//     gradient that nobody applies) keeps the last kMostBatches.
//
// Keys are tensors: int64, int32, or strings where the table has string keys; any shape. Letters: N keys, D the
// dimension. Thread-safe.
class DynamicTableResource : public tensorflow::ResourceBase {
 public:
  // INVALID_ARGUMENT for options that are not valid, RESOURCE_EXHAUSTED without memory.
  static Result<DynamicTableResource*> Create(const DynamicTableOptions& options, bool string_keys);

  DynamicTable& table() const { return *table_; }
  int64_t dim() const { return table_->options().dim; }
  const std::string& name() const { return table_->options().name; }
  // Null for a table of numbers.
  StringKeys* strings() const { return strings_.get(); }

  // INVALID_ARGUMENT for keys of another type than the table's.
  Status CheckKeys(const tensorflow::Tensor& keys) const;

  // In training: finds, counts, inserts, reads. times: int64 [N], how often each key is seen, or empty: once. rows:
  // [N, D]; numbers: [N], -1 for keys that are not admitted. INVALID_ARGUMENT for another number of times.
  Status Resolve(const tensorflow::Tensor& keys, const tensorflow::Tensor& times, float* rows, int64_t* numbers,
                 const ParallelFor& parallel);
  // In evaluation, without a trace. rows: [N, D].
  Status Lookup(const tensorflow::Tensor& keys, float* rows, const ParallelFor& parallel) const;
  // counts: [N].
  Status GetFrequency(const tensorflow::Tensor& keys, int64_t* counts) const;
  Status GetVersion(const tensorflow::Tensor& keys, int64_t* counts) const;

  // Sums gradients of rows and applies the rule once to each (DynamicTable::Update). numbers: [N], kNoRow for keys that
  // are not admitted; gradients: [N, D]; slots: the rule's, which are made where they are not there yet.
  Status Update(std::span<const uint32_t> numbers, const float* gradients, const UpdateRule& rule,
                std::span<const SlotSpec> slots, bool all_rows, const ParallelFor& parallel);

  // An optimizer has updated the rows of this step: lets the batches of the step before go, evicts by the table's
  // options, and sets the clock to `step`, or, where it is negative, to the next one.
  //
  // A step may have several optimizers, each of which ends it. So a call does nothing where no key has been resolved
  // since the last one, unless its `step` is later than the clock. That tells the steps of a loop in one run apart,
  // which TensorFlow gives one number. Where no loop is, and nothing orders the lookups of several optimizers, `run` is
  // that number, and the first call of a run counts; 0 for calls that are to be told by their lookups alone.
  void EndStep(int64_t step, int64_t run);
  // Lets these keys go; how many were there.
  Result<int64_t> Remove(const tensorflow::Tensor& keys);
  // DynamicTable::Restore of rows that belong to these keys; `part.keys` is filled here. New strings get their keys.
  Status Restore(const tensorflow::Tensor& keys, TableRows part, const RestoreOptions& options);
  // What lookups are counted in now.
  StepInfo now() const;

  // What the next change of rows is to be rounded by: another number each time, as neither part ever falls.
  int64_t NextRounding() { return (step_.load() << 20) + changes_.fetch_add(1); }
  // With the rows that Restore takes, what makes a program that is started again round as one that went on.
  struct Clock {
    int64_t step;     // that lookups are counted in
    int64_t changes;  // how often rows have been changed
  };
  Clock clock() const { return {step_, changes_}; }
  void set_clock(Clock clock) { step_ = clock.step, changes_ = clock.changes; }

  // Checkpoints (tf/checkpoint/table_ops.cc). A checkpoint has a link, a number that is never 0; what has changed since
  // is known of the last one that was saved or restored, link().
  //
  // Begins a snapshot, and keeps it until EndSnapshot. One that is there already, of a save that failed, is lost.
  Status BeginSnapshot(Snapshot::Kind kind);
  // All of it has been read: strings that have gone since it began may be forgotten.
  void SnapshotRead();
  // The snapshot that was begun, to be read. FAILED_PRECONDITION where there is none.
  Result<Snapshot*> snapshot();
  // It is safe on the disk, in the checkpoint `link`.
  Status EndSnapshot(int64_t link);
  int64_t link() const { return link_; }
  void set_link(int64_t link) { link_ = link; }
  // The save has failed: the next checkpoint has to be full.
  void DropSnapshot();
  // Lets keys go as an incremental checkpoint names them: a string by its number.
  void RemoveNumbers(std::span<const int64_t> keys);

  // Row numbers as an op has them, int64, as the table takes them. INVALID_ARGUMENT for what can be no number.
  static Result<std::vector<uint32_t>> Numbers(const tensorflow::Tensor& numbers);

  std::string DebugString() const override;
  int64_t MemoryUsed() const override;

 private:
  static constexpr size_t kMostBatches = 256;

  DynamicTableResource(std::unique_ptr<DynamicTable> table, std::unique_ptr<StringKeys> strings)
      : table_(std::move(table)), strings_(std::move(strings)) {}

  // Calls use(keys as int64). Strings are looked for, not added.
  template <typename Use>
  Status WithKeys(const tensorflow::Tensor& keys, Use&& use) const;
  Status ResolveKeys(std::span<const int64_t> keys, std::span<const int32_t> counts, float* rows, int64_t* numbers,
                     const ParallelFor& parallel);
  // Strings of keys that are not in the table go, those of `keys`.
  void ForgetStrings(std::span<const int64_t> keys);

  const std::unique_ptr<DynamicTable> table_;
  const std::unique_ptr<StringKeys> strings_;
  std::atomic<int64_t> step_{0};
  std::atomic<int64_t> link_{0};
  std::atomic<int64_t> changes_{0};  // for stochastic rounding, which draws other numbers in each

  // Shared: from when a string is given its key to when the key is resolved. Alone: while strings are forgotten.
  mutable std::shared_mutex naming_;
  std::mutex mutex_;
  std::deque<ResolvedKeys> batches_;    // guarded by mutex_: of this step
  std::deque<ResolvedKeys> before_;     // guarded by mutex_: of the step before
  std::unique_ptr<Snapshot> snapshot_;  // guarded by mutex_; goes before the table
  bool resolved_ = false;               // guarded by mutex_: whether keys have been since the last step ended
  int64_t last_run_ = 0;                // guarded by mutex_: the run that the last step ended in
  std::vector<int64_t> unadmitted_;     // guarded by mutex_: keys that were named in this step and are not admitted
};

// The table that input `index` of a kernel, a handle, names. FAILED_PRECONDITION where it has not been initialized.
Result<tensorflow::core::RefCountPtr<DynamicTableResource>> TableOf(tensorflow::OpKernelContext* context, int index);

}  // namespace lockstep
