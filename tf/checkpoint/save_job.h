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
#include "tf/table/table_resource.h"
#include "tf/variable/variable_snapshot.h"

namespace lockstep {

// The values that this worker saves, as they were when the save began. All workers have the same sharded tables and
// dynamic tables, in the same order; worker 0 has the variables that are equal on all workers.
struct SavedState {
  struct Tensor {
    std::string name;
    std::string slice;  // "" or its part of a larger tensor, as TensorFlow's operations write it
    tensorflow::Tensor value;
  };
  struct Variable {
    std::string name;
    std::string slice;
    std::shared_ptr<VariableSnapshot> snapshot;
  };
  struct Shard {
    SavedTable table;
    std::shared_ptr<VariableSnapshot> snapshot;  // [LocalRows, ...]
    TrackedRows::Pointer tracked;                // null if nobody asks for its changes
    std::vector<RowChanges::Change> changes;     // since the last checkpoint, in an incremental one
  };
  struct Dynamic {
    std::string name;
    tensorflow::core::RefCountPtr<DynamicTableResource> table = {};
    std::shared_ptr<Snapshot> snapshot = {};
    TableCounts counts = {};
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

  // Ends the snapshots of a failed save: one that is left unread makes every change cost a copy.
  void Drop();
};

// Writes a checkpoint of the whole job, in five steps (job_steps.h). All workers call it with the same name and prefix.
//
//   1. collect   The state of each worker: snapshots that began at the same training step (save_op.cc).
//   2. count     All learn how many rows each of them writes, and the checkpoint's id.
//   3. write     Each worker writes a file of its own beside the place: its tensors and variables, its rows of dynamic
//                tables, and its contiguous range of the sharded tables, which passes by piece by piece
//                (core/sharding/table.h).
//   4. commit    Worker 0 merges the files' indices, and moves the checkpoint to its place (commit.h). Before that, it
//                does not exist.
//   5. end       The snapshots end as saved: the next incremental checkpoint may build on this one.
//
// An error on one worker (a full disk, a state that could not be collected) is returned on all of them, and the
// communicator stays usable.
class SaveJob {
 public:
  SaveJob(std::string name, std::string prefix, Result<SavedState> state);

  Status Run(Communicator& communicator);
  // Ends the snapshots of the state; instead of Run.
  void Drop();

 private:
  Status Save(Communicator& communicator);

  // Step 2.
  Status CountRows(Communicator& communicator);
  void FindChanges(SavedState::Shard* shard) const;

  // Step 3. First what this worker writes by itself, then the sharded tables: their rows move between workers.
  Status OpenFile(int rank, int workers);
  Status WriteTensors(int rank);  // and variables
  Status WriteVariable(const SavedState::Variable& variable);
  Status WriteTables(int rank, int workers);
  Status WriteShards(Communicator& communicator);
  // Writes the whole table, or only rows that changed. changed: how many these are on each worker.
  Status WriteRows(Communicator& communicator, SavedState::Shard* shard);
  Status WriteChanges(int rank, int workers, const SavedState::Shard& shard, const TableParts& changed);
  // Ends the file. An error as well if a snapshot was lost.
  Status FinishFile();

  // Step 4. wrote: which workers have a file.
  Status Commit(Communicator& communicator);
  Status MergeAndMove(const std::vector<int64_t>& wrote);

  // Step 5.
  Status EndSnapshots();

  // Ends a variable's snapshot that has been read: changes need no copies from here on.
  void End(const std::string& name, VariableSnapshot* snapshot);
  Status Add(const std::string& name, const std::string& slice, const tensorflow::Tensor& value);

  std::string Aside() const { return prefix_ + "_temp/"; }
  std::string FileOf(int rank, int workers) const;

  const std::string name_, prefix_;
  Result<SavedState> state_;
  std::vector<TableParts> parts_;  // [T, 3 + S] of dynamic tables, and of the changed rows of sharded ones
  int64_t checkpoint_id_ = 0;
  std::optional<tensorflow::BundleWriter> file_;  // this worker's
  bool wrote_ = false;                            // whether it has tensors
  Status read_;                                   // whether all that was read of snapshots is of them
};

}  // namespace lockstep
