#include "tf/checkpoint/saved_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tf/bridge/convert.h"
#include "tf/checkpoint/bundle_rows.h"

namespace lockstep {

namespace tf = ::tensorflow;

int64_t SavedTable::row_bytes() const {
  int64_t bytes = tf::DataTypeSize(dtype);
  for (int d = 1; d < shape.dims(); ++d) bytes *= shape.dim_size(d);
  return bytes;
}

tf::TensorShape SavedTable::With(int64_t rows) const {
  tf::TensorShape part = shape;
  part.set_dim(0, rows);
  return part;
}

std::string SavedTable::Collective(const std::string& op) const {
  return absl::StrCat(op, " of '", name, "' ", tf::DataTypeString(dtype), shape.DebugString(), " in blocks of ",
                      placement.block, " from rank ", placement.first, " on");
}

Status SavedTable::CheckPlacement(const Communicator& communicator) const {
  if (placement.first < communicator.size()) return OkStatus();
  return InvalidArgument(absl::StrCat("table '", name, "': its rows begin on rank ", placement.first, "; the job has ",
                                      communicator.size(), " ranks"));
}

int64_t SavedTable::PieceBytes(int64_t wanted, int workers) const {
  if (wanted > 0) return wanted;
  return std::max(kTableStepBytes, placement.LocalRows(placement.first, workers) * row_bytes() / kMostSlices);
}

Status CheckChanges(const std::string& ids, int64_t changed, int64_t rows) {
  if (changed >= 0 && changed <= rows) return OkStatus();
  return DataLoss(absl::StrCat("tensor '", ids, "' has ", changed, " ids in the checkpoint, wanted at most ", rows,
                               ", the rows of the table"));
}

Result<std::vector<SavedTable>> SavedTablesOf(tf::OpKernelConstruction* construction) {
  std::vector<std::string> names;
  std::vector<tf::DataType> dtypes;
  std::vector<tf::TensorShape> shapes;
  std::vector<int64_t> blocks, first_ranks;
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(construction->GetAttr("shard_names", &names)));
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(construction->GetAttr("shard_dtypes", &dtypes)));
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(construction->GetAttr("shard_shapes", &shapes)));
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(construction->GetAttr("blocks", &blocks)));
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(construction->GetAttr("first_ranks", &first_ranks)));
  const size_t count = names.size();
  if (dtypes.size() != count || shapes.size() != count || blocks.size() != count || first_ranks.size() != count) {
    return InvalidArgument("the lists of arguments have different lengths");
  }
  std::vector<SavedTable> tables;
  for (size_t t = 0; t < count; ++t) {
    if (shapes[t].dims() == 0 || blocks[t] <= 0) {
      return InvalidArgument(absl::StrCat("table '", names[t], "': shape ", shapes[t].DebugString(), " in blocks of ",
                                          blocks[t], ", wanted rows in blocks of 1 or more"));
    }
    tables.push_back({names[t], dtypes[t], shapes[t],
                      Placement(shapes[t].dim_size(0), blocks[t], static_cast<int>(first_ranks[t]))});
  }
  return tables;
}

}  // namespace lockstep
