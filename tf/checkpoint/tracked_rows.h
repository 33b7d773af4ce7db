#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/parallel.h"
#include "core/base/status.h"
#include "core/sharding/row_changes.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"

namespace lockstep {

// The last checkpoint of a sharded table: its id, and which rows have changed since. The object lies beside the
// table's variable. Slots of optimizers have objects of their own.
//
// A checkpoint has an id (table_layout.h). An incremental one can follow only if the changes since the
// last one are known: after a save or the restore of an increment, but not after the restore of a full checkpoint.
//
// Thread-safe.
class TrackedRows : public tensorflow::ResourceBase {
 public:
  using Pointer = tensorflow::core::RefCountPtr<TrackedRows>;

  // Returns the object of a variable, which the first call makes.
  static Result<Pointer> Of(tensorflow::OpKernelContext* context, const tensorflow::ResourceHandle& variable);
  // Returns null if there is none.
  static Pointer Find(tensorflow::OpKernelContext* context, const tensorflow::ResourceHandle& variable);

  // Compares rows with the last checkpoint's rows from now on. `rows`: the variable's, [L, ...].
  void Track(const tensorflow::Tensor& rows, const ParallelFor& parallel);
  bool tracks() const;
  // Returns the checkpoint that was saved or restored last.
  std::optional<int64_t> checkpoint_id() const;
  // Returns the same if it is known which rows have changed since.
  std::optional<int64_t> known_checkpoint() const;

  // Adds the rows that have changed (RowChanges::Find). Only if it tracks.
  void FindChanges(RowRange part, const char* rows, std::vector<RowChanges::Change>* changes) const;
  // Takes rows of a full checkpoint that is being saved. Changes are not known until it is complete, and remain so if
  // it never is: to keep what they were takes memory. Only if it tracks.
  void Take(RowRange part, const char* rows);
  // Declares that the checkpoint `checkpoint_id` is complete. `changes`: how the rows of an increment differ from the
  // rows of the checkpoint before it; empty for a full one.
  void Saved(int64_t checkpoint_id, std::span<const RowChanges::Change> changes);
  // Declares that a full checkpoint was restored; with no id if it has none.
  void Restored(std::optional<int64_t> checkpoint_id);
  // Declares that the increment `checkpoint_id` was restored on the checkpoint before it. changed: the rows that it
  // has, or null: all. `rows`: the variable's, [L, ...].
  void RestoredIncrement(std::optional<int64_t> checkpoint_id, const std::vector<int64_t>* changed,
                         const tensorflow::Tensor& rows, const ParallelFor& parallel);

  std::string DebugString() const override { return "rows that changed since the last checkpoint"; }

 private:
  mutable Mutex mutex_;
  std::optional<int64_t> checkpoint_id_ LOCKSTEP_GUARDED_BY(mutex_);
  bool known_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // rows_ are those of this checkpoint
  std::optional<RowChanges> rows_ LOCKSTEP_GUARDED_BY(mutex_);
};

// The tensor of a checkpoint, int64 [2], with its own id and the id of the checkpoint on which it builds, or 0. It is
// there if the changes of sharded tables are tracked. Dynamic tables have the same ids beside their tensors.
inline constexpr const char* kCheckpointIdTensor = "lockstep-link";

}  // namespace lockstep
