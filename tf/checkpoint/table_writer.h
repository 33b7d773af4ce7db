#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/embedding/snapshot.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "tf/checkpoint/table_layout.h"
#include "tf/table/table_resource.h"

namespace lockstep {

// The division of a table's rows among the workers that write them, and this worker's part.
struct TableShare {
  int rank = 0;
  bool changes = false;  // an incremental checkpoint
  TableParts admitted, candidates, removed;
  // The id of this checkpoint, and the id of the checkpoint that it builds on, if it is incremental.
  int64_t checkpoint_id = 0;
  std::optional<int64_t> previous = std::nullopt;
  // The table's clock when the snapshot began.
  DynamicTableResource::Clock clock = {};
  // The rows examined at once. Default: as many as take some megabytes.
  std::optional<int64_t> part_rows = std::nullopt;
};

// A snapshot's numbers of admitted keys, candidates and removed keys. Workers exchange them before they write.
using TableCounts = std::array<int64_t, 3>;
TableCounts CountsOf(const Snapshot& snapshot);

// Returns an id for a checkpoint that no other one has. The program's seeds do not matter: it is not from TensorFlow's
// generators.
int64_t NewCheckpointId();

// Writes this worker's part of a table to its file of a checkpoint, piece by piece (table_layout.h). Worker 0 also
// writes the tensors that exist once. For one thread; files and table outlive it.
class TableWriter {
 public:
  // strings: the file for string keys. It is the same file if one worker has them all. Otherwise it is a separate one,
  // because TensorFlow has no slices of strings; the files of all workers are joined later (LockstepJoinStrings).
  TableWriter(tensorflow::BundleWriter* file, tensorflow::BundleWriter* strings, DynamicTableResource* table,
              const std::string& name, TableShare share);

  // Reads the snapshot to its end. FAILED_PRECONDITION if it has other numbers of rows than announced; or an error of
  // writing.
  Status Write(Snapshot* snapshot);
  // Returns whether anything was written to the file.
  bool wrote() const { return wrote_; }

 private:
  Status WriteSweep(const EvictionSweep& sweep);
  Status WriteOnce(const Snapshot& snapshot);
  Status WriteRows(const SnapshotPart& part);
  Status WriteCounts(const TableRows& rows, const std::string& end, const TableParts& parts, int64_t begin);
  Status WriteEmpty();
  // Handles the next keys of a kind: writes numbers, collects strings.
  Status WriteKeys(const TableRows& rows, bool admitted, int64_t begin);
  Status Add(const std::string& name, const tensorflow::Tensor& tensor);
  // Adds rows [begin, begin + N) of a tensor of parts.total() rows; N may be 0.
  Status AddSlice(const std::string& name, const TableParts& parts, int64_t begin, const tensorflow::Tensor& rows);

  tensorflow::BundleWriter *const file_, *const strings_file_;
  DynamicTableResource* const table_;
  const TableLayout layout_;
  const TableShare share_;
  std::vector<DynamicTable::Slot> slots_;  // of the snapshot that is written
  int64_t written_[2] = {0, 0};            // admitted keys, candidates
  std::vector<std::string> strings_[2];
  bool wrote_ = false;
};

// The files of a worker: one for numbers and, if there are several workers, one for the string keys of all its tables,
// which is made when the first such table comes.
class TableFiles {
 public:
  // prefix: the name of `file`.
  TableFiles(tensorflow::BundleWriter* file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  // Writes the worker's part of a table: its snapshot, to the end.
  Status Write(DynamicTableResource* table, const std::string& name, TableShare share);
  // Ends the file of strings. The caller ends the other one.
  Status Finish();
  // Returns whether anything was written to the file of numbers.
  bool wrote() const { return wrote_; }

 private:
  tensorflow::BundleWriter* const file_;
  const std::string prefix_;
  std::optional<tensorflow::BundleWriter> strings_;
  bool wrote_ = false;
};

// Joins the string tensors that several workers have written beside their files with these prefixes, in a file of its
// own: one tensor at a time.
Status JoinStrings(tensorflow::Env* env, const std::vector<std::string>& prefixes, const std::string& joined);

}  // namespace lockstep
