#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "tf/checkpoint/saved_table.h"
#include "tf/checkpoint/table_layout.h"
#include "tf/checkpoint/table_writer.h"
#include "tf/checkpoint/tracked_rows.h"
#include "tf/embedding/table_resource.h"
#include "tf/embedding/variable_moment.h"

namespace lockstep {

// The values that this worker saves, as they were at one moment. All workers have the same sharded tables and dynamic
// tables, in the same order; worker 0 has the variables that are equal on all workers.
struct SavedState {
  struct Tensor {
    std::string name;
    std::string slice;  // "" or its part of a larger tensor, as TensorFlow's operations write it
    tensorflow::Tensor value;
  };
  struct Variable {
    std::string name;
    std::string slice;
    std::shared_ptr<VariableMoment> moment;
  };
  struct Shard {
    SavedTable table;
    std::shared_ptr<VariableMoment> moment;   // [LocalRows, ...]
    TrackedRows::Pointer tracked;             // null if nobody asks for its changes
    std::vector<RowChanges::Change> changes;  // since the last checkpoint, in an incremental one
  };
  struct Dynamic {
    std::string name;
    tensorflow::core::RefCountPtr<DynamicTableResource> table = {};
    std::shared_ptr<Snapshot> snapshot = {};
    TableCounts counts = {};
    std::vector<DynamicTable::Slot> slots = {};
    DynamicTableResource::Clock clock = {};
  };

  std::vector<Tensor> tensors;
  std::vector<Variable> variables;
  std::vector<Shard> shards;
  std::vector<Dynamic> tables;
  bool changes = false;              // an incremental checkpoint
  std::optional<int64_t> previous;   // the checkpoint on which it builds
  int64_t piece_bytes = 0;           // of shards and variables; 0: some megabytes
  std::optional<int64_t> part_rows;  // of dynamic tables; no value: as many as take some megabytes

  // Ends the moments and snapshots of a failed save: one that is left unread makes every change cost a copy.
  void Drop();
};

// Writes a checkpoint of the whole job. It is a sequence of collectives: all workers call it with the same name and
// prefix.
//
// 1. Each worker writes one file beside the place: its contiguous range of the sharded tables, which passes by piece by
//    piece (core/sharding/table.h), its rows of dynamic tables, and its own tensors and variables.
// 2. Worker 0 merges the files' indices, and moves the checkpoint to its place (commit.h). Before that, it does not
//    exist.
//
// An error on one worker (a full disk, a state that could not be collected) is returned on all of them, and the
// communicator stays usable.
class SaveJob {
 public:
  SaveJob(std::string name, std::string prefix, Result<SavedState> state);

  Status Run(Communicator& communicator);
  // Ends the moments of the state; instead of Run.
  void Drop();

 private:
  Status Save(Communicator& communicator);
  Status WriteOwn(int rank, tensorflow::BundleWriter* file);
  Status WriteVariable(tensorflow::BundleWriter* file, const SavedState::Variable& variable);
  // Finds the rows of the shard that changed, for an incremental checkpoint.
  void FindChanges(SavedState::Shard* shard) const;
  // changed: the changed rows of each worker, if the checkpoint is incremental.
  Status WriteShard(Communicator& communicator, tensorflow::BundleWriter* file, SavedState::Shard* shard,
                    const TableParts& changed);
  // Writes the whole table.
  Status WriteRows(Communicator& communicator, tensorflow::BundleWriter* file, SavedState::Shard* shard);
  Status WriteChanges(const Communicator& communicator, tensorflow::BundleWriter* file, const SavedState::Shard& shard,
                      const TableParts& changed);
  // Tells all workers the numbers of rows of all, and a number for the checkpoint.
  Status ExchangeCounts(Communicator& communicator);
  Status WriteTables(Communicator& communicator, tensorflow::BundleWriter* file, const std::string& path);
  Status EndSnapshots();
  // On worker 0. wrote: which workers have a file.
  Status MergeAndCommit(const std::vector<int64_t>& wrote);
  Status Add(tensorflow::BundleWriter* file, const std::string& name, const std::string& slice,
             const tensorflow::Tensor& value);

  std::string Aside() const { return prefix_ + "_temp/"; }
  std::string FileOf(int rank, int workers) const;

  const std::string name_, prefix_;
  Result<SavedState> state_;
  std::vector<TableParts> parts_;  // [T, 3 + S] of dynamic tables, and of the changed rows of sharded ones
  int64_t link_ = 0;
  bool wrote_ = false;
};

}  // namespace lockstep
