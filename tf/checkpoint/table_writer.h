#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/embedding/snapshot.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "tf/checkpoint/table_layout.h"
#include "tf/embedding/table_resource.h"

namespace lockstep {

// How a table's rows are shared out over the workers that write them, and where this one is among them.
struct TableShare {
  int rank = 0;
  bool changes = false;  // an incremental checkpoint
  TableParts admitted, candidates, removed;
  // Of this checkpoint, and of the one that it builds on, or 0.
  int64_t link = 0, previous = 0;
  // Looked at in one go; 0: as many as take some megabytes.
  int64_t part_rows = 0;
};

// Writes this worker's part of a table to its file of a checkpoint, piece by piece (table_layout.h). Worker 0 writes
// what there is once. For one thread; files and table outlive it.
class TableWriter {
 public:
  // strings: where string keys go to. The same file where one worker has them all; otherwise one of its own, since
  // TensorFlow has no slices of strings: those of all workers are to be joined (LockstepJoinStrings).
  TableWriter(tensorflow::BundleWriter* file, tensorflow::BundleWriter* strings, DynamicTableResource* table,
              const std::string& name, TableShare share);

  // Reads the snapshot to its end. FAILED_PRECONDITION where it has other rows than were announced; or what fails in
  // writing.
  Status Write(Snapshot* snapshot);
  // Whether anything was written to the file.
  bool wrote() const { return wrote_; }

 private:
  Status WriteSweep(const EvictionSweep& sweep);
  Status WriteOnce(const Snapshot& snapshot);
  Status WriteRows(const SnapshotPart& part);
  Status WriteCounts(const TableRows& rows, const std::string& end, const TableParts& parts, int64_t begin);
  Status WriteEmpty();
  // The next keys of a kind: those of numbers are written, strings are collected.
  Status WriteKeys(const TableRows& rows, bool admitted, int64_t begin);
  Status Add(const std::string& name, const tensorflow::Tensor& tensor);
  // Rows [begin, begin + N) of a tensor of parts.total() rows; N may be 0.
  Status AddSlice(const std::string& name, const TableParts& parts, int64_t begin, const tensorflow::Tensor& rows);

  tensorflow::BundleWriter *const file_, *const strings_file_;
  DynamicTableResource* const table_;
  const TableLayout layout_;
  const TableShare share_;
  const std::vector<DynamicTable::Slot> slots_;
  int64_t written_[2] = {0, 0};  // admitted keys, candidates
  std::vector<std::string> strings_[2];
  bool wrote_ = false;
};

}  // namespace lockstep
