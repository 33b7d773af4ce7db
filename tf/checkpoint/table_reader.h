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
#include "tf/table/table_resource.h"

namespace lockstep {

// Restores a table from a checkpoint (table_layout.h), piece by piece: the keys that worker `rank` of `world_size`
// owns. Any number of workers may have written it, with any placement of the keys.
//
// State that the checkpoint lacks begins with initial values: slots of an optimizer that did not train it, and counts
// that it did not record. Slots that the present optimizer lacks are kept, and saved again. Admitted keys stay
// admitted, regardless of the table's present options. Candidates keep their counts if the table counts exactly.
//
// Bloom filters. With as many workers as before, each worker gets its own counters. Otherwise a worker takes the
// maximum of the counters of all writers that may have counted its keys. So no key is counted less often than it was
// seen, and none is admitted late. Its counters may include other keys that were seen elsewhere, so some keys are
// admitted earlier than with the former workers.
//
// For one thread; file and table outlive it.
class TableReader {
 public:
  // The parts of a table that are restored.
  enum class Part {
    kAll,           // the table continues as in the checkpoint
    kRows,          // keys and rows, as initial values of another training, without steps, counts and slots
    kRowsAndSlots,  // the same, with the optimizer's slots
  };

  // changes: the file is an incremental checkpoint; part is then kAll.
  TableReader(tensorflow::BundleReader* file, DynamicTableResource* table, const std::string& name, bool changes,
              int rank, int world_size, Part part = Part::kAll);

  // NOT_FOUND if the checkpoint lacks the table or some of its tensors. INVALID_ARGUMENT for another dimension or type
  // of keys, a filter of other sizes, or keys on a rank that is not in the job. FAILED_PRECONDITION for changes of
  // another checkpoint than the one that the table holds. Or an error of reading. The table may then be partly
  // restored.
  Status Restore();

 private:
  struct Slots {
    std::vector<std::string> names;  // in the checkpoint
    std::vector<int> numbers;        // in the table
  };

  Status CheckShapes();
  Status CheckBase();
  // Reads how the keys were placed.
  Status ComparePlacements();
  // Returns the distance between the writers of keys that this worker owns; the first one is this worker's rank modulo
  // the distance.
  int StepOfWriters(int writers) const;
  Status RestoreSlots();
  Status RestoreRemoved();
  Status RestoreFilter();
  Status RestoreSweep();
  Status RestoreKeys(bool admitted);
  Status RestorePiece(bool admitted, int64_t begin, int64_t end);
  // Keeps only the rows of a part whose strings this worker owns. The others must not get keys here, because no code
  // would ever remove them.
  void KeepOwnStrings(tensorflow::Tensor* keys, TableRows* part) const;
  // Returns whether rows [begin, end) of a kind may have keys that this worker owns.
  Result<bool> Concerns(bool admitted, int64_t begin, int64_t end);

  bool Has(const std::string& name) { return file_->Contains(name); }
  // Returns a small tensor, whole; tensors that were read before are kept.
  Result<tensorflow::Tensor> Read(const std::string& name, tensorflow::DataType dtype);
  // The same, for a tensor of `shape`.
  Result<tensorflow::Tensor> Read(const std::string& name, tensorflow::DataType dtype,
                                  const tensorflow::TensorShape& shape);
  // Returns rows [begin, end) of a tensor, of `width` values each.
  Result<tensorflow::Tensor> ReadRows(const std::string& name, tensorflow::DataType dtype, int64_t begin, int64_t end,
                                      int64_t width);
  // Returns the pieces in which a tensor was written, begin -> end: consecutive, from 0 to its last row.
  Result<std::map<int64_t, int64_t>> Pieces(const std::string& name);

  tensorflow::BundleReader* const file_;
  DynamicTableResource* const table_;
  const std::string name_;
  const TableLayout layout_;
  const bool changes_;
  const int rank_, world_size_;
  const Part part_;
  bool same_placement_ = true;  // whether the keys were placed as the table places them
  Slots slots_;
  std::map<std::string, tensorflow::Tensor> read_;
};

}  // namespace lockstep
