#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/sharding/placement.h"
#include "core/sharding/table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace lockstep {

// A sharded table in a checkpoint, the same on all workers: one tensor, by id.
struct SavedTable {
  std::string name;  // of the tensor
  tensorflow::DataType dtype;
  tensorflow::TensorShape shape;  // of the whole table
  Placement placement{0};

  int64_t row_bytes() const;
  MovedTable moved() const { return {placement, row_bytes()}; }
  // Returns the shape of `rows` rows.
  tensorflow::TensorShape With(int64_t rows) const;
  // Returns the collective's name for an operation. It tells all that has to agree.
  std::string Collective(const std::string& op) const;
  // Returns INVALID_ARGUMENT if the table's rows begin on a rank that the job does not have.
  Status CheckPlacement(const Communicator& communicator) const;
  // Returns the bytes of a piece, the same on all workers; `wanted`: 0 for some megabytes.
  int64_t PieceBytes(int64_t wanted, int workers) const;
};

// In an incremental checkpoint a table of which few rows have changed is two tensors: the ids of these rows, int64 [C],
// and the rows, [C, ...]. Any other table is one tensor as in a full checkpoint.
inline std::string ChangedIds(const std::string& table) { return table + "-changed-ids"; }
inline std::string ChangedValues(const std::string& table) { return table + "-changed-values"; }

// Returns DATA_LOSS unless a file's number of changed rows fits to a table of `rows` rows. Shapes are made of it only
// afterwards: TensorFlow ends the process for a shape with too many elements.
Status CheckChanges(const std::string& ids, int64_t changed, int64_t rows);

// Returns the tables of an op's attributes: shard_names, shard_dtypes, shard_shapes, blocks and first_ranks.
Result<std::vector<SavedTable>> SavedTablesOf(tensorflow::OpKernelConstruction* construction);

}  // namespace lockstep
