#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/embedding/dynamic_table.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "tf/checkpoint/table_layout.h"
#include "tf/embedding/table_resource.h"

namespace lockstep {

// Puts what a checkpoint has of a table (table_layout.h) into the table, piece by piece: the keys that worker `rank` of
// `world_size` owns, whatever number of workers wrote it.
//
// What the checkpoint doesn't have begins anew: slots of an optimizer that didn't train it, counts that it didn't
// record. Slots that the present optimizer doesn't have are kept, and saved again. Admitted keys stay admitted,
// whatever the table's options are now; those that are counted are counted on, where the table counts.
//
// Bloom filters. With as many workers as before each gets its own counters. Otherwise a worker takes the largest of the
// counters of those who may have counted its keys: no key is counted less often than it was seen, so none is admitted
// late; other keys that share its counters may have been seen elsewhere, so some are admitted earlier than with the
// workers of before.
//
// For one thread; file and table outlive it.
class TableReader {
 public:
  // changes: the file is an incremental checkpoint.
  TableReader(tensorflow::BundleReader* file, DynamicTableResource* table, const std::string& name, bool changes,
              int rank, int world_size);

  // NOT_FOUND where the checkpoint doesn't have the table, or tensors of it; INVALID_ARGUMENT for another dimension or
  // type of keys, or a filter of other sizes; FAILED_PRECONDITION for changes of another checkpoint than the one that
  // the table holds; or what fails in reading. Part of it may be in the table then.
  Status Restore();

 private:
  struct Slots {
    std::vector<std::string> names;  // in the checkpoint
    std::vector<int> numbers;        // in the table
  };

  Status CheckShapes();
  Status CheckLink();
  Status RestoreSlots();
  Status RestoreRemoved();
  Status RestoreFilter();
  Status RestoreSweep();
  Status RestoreKeys(bool admitted);
  Status RestorePiece(bool admitted, int64_t begin, int64_t end);
  // Leaves of a part the rows whose strings this worker owns. The others' are not to be given keys here: nobody would
  // ever forget them.
  void KeepOwnStrings(tensorflow::Tensor* keys, TableRows* part) const;
  // Whether rows [begin, end) of those of a kind may have keys that this worker owns.
  Result<bool> Concerns(bool admitted, int64_t begin, int64_t end);

  bool Has(const std::string& name) { return file_->Contains(name); }
  // A small tensor, whole; those that were read before are kept.
  Result<tensorflow::Tensor> Read(const std::string& name, tensorflow::DataType dtype);
  // The same, of `shape`.
  Result<tensorflow::Tensor> Read(const std::string& name, tensorflow::DataType dtype,
                                  const tensorflow::TensorShape& shape);
  // Rows [begin, end) of a tensor, of `width` values each.
  Result<tensorflow::Tensor> ReadRows(const std::string& name, tensorflow::DataType dtype, int64_t begin, int64_t end,
                                      int64_t width);
  // The pieces in which a tensor was written, begin -> end: one behind the other, from 0 to its last row.
  Result<std::map<int64_t, int64_t>> Pieces(const std::string& name);

  tensorflow::BundleReader* const file_;
  DynamicTableResource* const table_;
  const std::string name_;
  const TableLayout layout_;
  const bool changes_;
  const int rank_, world_size_;
  Slots slots_;
  std::map<std::string, tensorflow::Tensor> read_;
};

}  // namespace lockstep
