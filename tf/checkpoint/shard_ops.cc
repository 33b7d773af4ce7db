// Writes sharded tables to a checkpoint, and restores them, without a copy of a worker's rows. In a checkpoint a table
// is one tensor, by id. Each worker writes and reads a contiguous range of it, and the rows pass between the ranges and
// their owners in pieces (core/sharding/table.h):
//
//   write    rows of the variable  ──► exchange ──► a slice of the tensor in this worker's file     piece by piece
//   restore  rows of the variable  ◄── exchange ◄── rows of the tensor, from any slices             piece by piece
//
// A piece takes 8 MiB, or 1/256 of the largest share if that is more (kMostSlices).
//
// The arguments are lists with a place for each table. Slots of optimizers are tables as well. An error on one worker
// (a full disk, a damaged file) is returned on all of them.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/crash_point.h"
#include "core/sharding/placement.h"
#include "core/sharding/table.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "tf/bridge/convert.h"
#include "tf/checkpoint/bundle_rows.h"
#include "tf/checkpoint/rows_reader.h"
#include "tf/comm/collective_kernel.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;
using VariablePointer = tf::core::RefCountPtr<tf::Var>;

// A table in an op's attributes, the same on all workers.
struct SavedTable {
  std::string name;  // of the tensor
  tf::DataType dtype;
  tf::TensorShape shape;  // of the whole table
  Placement placement{0};

  int64_t row_bytes() const {
    int64_t bytes = tf::DataTypeSize(dtype);
    for (int d = 1; d < shape.dims(); ++d) bytes *= shape.dim_size(d);
    return bytes;
  }
  MovedTable moved() const { return {placement, row_bytes()}; }
  // Returns the shape of `rows` rows.
  tf::TensorShape With(int64_t rows) const {
    tf::TensorShape part = shape;
    part.set_dim(0, rows);
    return part;
  }
  // The collective's name. It tells all that has to agree.
  std::string Collective(const std::string& op) const {
    return absl::StrCat(op, " of '", name, "' ", tf::DataTypeString(dtype), shape.DebugString(), " in blocks of ",
                        placement.block, " from rank ", placement.first, " on");
  }
};

// Base of both kernels. Input 0 is the checkpoint's prefix; the others are the variables.
class ShardsKernel : public CollectiveKernel {
 public:
  explicit ShardsKernel(tf::OpKernelConstruction* construction) : CollectiveKernel(construction) {
    std::vector<std::string> names;
    std::vector<tf::DataType> dtypes;
    std::vector<tf::TensorShape> shapes;
    std::vector<int64_t> blocks, first_ranks;
    OP_REQUIRES_OK(construction, construction->GetAttr("names", &names));
    OP_REQUIRES_OK(construction, construction->GetAttr("dtypes", &dtypes));
    OP_REQUIRES_OK(construction, construction->GetAttr("shapes", &shapes));
    OP_REQUIRES_OK(construction, construction->GetAttr("blocks", &blocks));
    OP_REQUIRES_OK(construction, construction->GetAttr("first_ranks", &first_ranks));
    OP_REQUIRES_OK(construction, construction->GetAttr("piece_bytes", &piece_bytes_));
    const size_t count = names.size();
    OP_REQUIRES(construction,
                dtypes.size() == count && shapes.size() == count && blocks.size() == count &&
                    first_ranks.size() == count && construction->num_inputs() == static_cast<int>(count) + 1,
                absl::InvalidArgumentError("the lists of arguments have different lengths"));
    for (size_t t = 0; t < count; ++t) {
      OP_REQUIRES(construction, shapes[t].dims() > 0 && blocks[t] > 0,
                  absl::InvalidArgumentError(absl::StrCat("table '", names[t], "': a table has rows, in blocks")));
      tables_.push_back({names[t], dtypes[t], shapes[t],
                         Placement(shapes[t].dim_size(0), blocks[t], static_cast<int>(first_ranks[t]))});
    }
  }

 protected:
  // The arguments of a call; they live until the exchange has ended.
  struct Arguments {
    std::string prefix;
    std::vector<VariablePointer> variables;
  };

  // Called in Prepare, for each variable; its mutex is not held.
  virtual Status Check(tf::Var* variable, const SavedTable& table, int64_t own_rows) const = 0;
  // Called on the lane.
  virtual Status Run(Communicator& communicator, const Arguments& arguments, tf::Tensor* result) const = 0;

  Result<Exchange> Prepare(const Call& call) final {
    const Communicator& communicator = call.engine.communicator();
    auto arguments = std::make_shared<Arguments>();
    arguments->prefix = std::string(call.context->input(0).scalar<tf::tstring>()());
    for (size_t t = 0; t < tables_.size(); ++t) {
      const SavedTable& table = tables_[t];
      const std::string where = absl::StrCat("table '", table.name, "': ");
      if (table.placement.first >= communicator.size()) {
        return InvalidArgument(absl::StrCat(where, "its rows begin on rank ", table.placement.first, "; the job has ",
                                            communicator.size(), " ranks"));
      }
      VariablePointer variable;
      const tf::ResourceHandle& handle = tf::HandleFromInput(call.context, static_cast<int>(t) + 1);
      LOCKSTEP_RETURN_IF_ERROR(
          FromTensorFlow(tf::LookupOrCreateResource<tf::Var>(call.context, handle, &variable, [&table](tf::Var** made) {
            *made = new tf::Var(table.dtype);
            return absl::OkStatus();
          })));
      const int64_t own_rows = table.placement.LocalRows(communicator.rank(), communicator.size());
      LOCKSTEP_RETURN_IF_ERROR(Check(variable.get(), table, own_rows).WithPrefix(where));
      arguments->variables.push_back(std::move(variable));
    }
    tf::Tensor* result = nullptr;
    if (call.context->num_outputs() > 0) {
      LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(call.context->allocate_output(0, {}, &result)));
    }
    return Exchange(
        [this, arguments, result](Communicator& communicator) { return Run(communicator, *arguments, result); });
  }

  const std::vector<SavedTable>& tables() const { return tables_; }
  // Returns the bytes of a piece, the same on all workers.
  int64_t PieceBytes(const SavedTable& table, int workers) const {
    if (piece_bytes_ > 0) return piece_bytes_;
    const Placement& placement = table.placement;
    return std::max(kTableStepBytes, placement.LocalRows(placement.first, workers) * table.row_bytes() / kMostSlices);
  }

  // Returns `status` on all workers, if it is an error on any: they meet here.
  Status Meet(Communicator& communicator, const Status& status) const {
    return status.ok() ? communicator.Barrier(collective_name()) : communicator.Decline(collective_name(), status);
  }

 private:
  std::vector<SavedTable> tables_;
  int64_t piece_bytes_ = 0;
};

class WriteShardsKernel : public ShardsKernel {
 public:
  using ShardsKernel::ShardsKernel;

 protected:
  Status Check(tf::Var* variable, const SavedTable& table, int64_t own_rows) const override {
    const tf::tf_shared_lock lock(*variable->mu());
    const tf::Tensor& rows = *variable->tensor();
    if (!variable->is_initialized) return FailedPrecondition("it is not initialized");
    if (rows.dtype() == table.dtype && rows.shape() == table.With(own_rows)) return OkStatus();
    return InvalidArgument(absl::StrCat("its variable is ", tf::DataTypeString(rows.dtype()),
                                        rows.shape().DebugString(), ", wanted ", tf::DataTypeString(table.dtype),
                                        table.With(own_rows).DebugString()));
  }

  Status Run(Communicator& communicator, const Arguments& arguments, tf::Tensor* has_rows) const override {
    tf::BundleWriter file(tf::Env::Default(), arguments.prefix);
    LOCKSTEP_RETURN_IF_ERROR(Meet(communicator, FromTensorFlow(file.status())));
    bool wrote = false;
    for (size_t t = 0; t < tables().size(); ++t) {
      const SavedTable& table = tables()[t];
      const auto take = [&](RowRange rows, const char* data) {
        wrote = true;
        return Write(&file, table, rows, data);
      };
      // Nothing changes the rows while they are read.
      const tf::tf_shared_lock lock(*arguments.variables[t]->mu());
      LOCKSTEP_RETURN_IF_ERROR(RelayToContiguous(communicator, table.Collective(collective_name()), table.moved(),
                                                 Data(*arguments.variables[t]->tensor()), take,
                                                 PieceBytes(table, communicator.size())));
    }
    has_rows->scalar<bool>()() = wrote;
    LOCKSTEP_RETURN_IF_ERROR(Meet(communicator, FromTensorFlow(file.Finish())));
    PassCrashPoint("shards: file written");
    return OkStatus();
  }

 private:
  static Status Write(tf::BundleWriter* file, const SavedTable& table, RowRange rows, const char* data) {
    tf::Tensor piece(table.dtype, table.With(rows.count()));
    std::copy_n(data, rows.count() * table.row_bytes(), static_cast<char*>(Data(piece)));
    LOCKSTEP_RETURN_IF_ERROR(AddRows(file, table.name, table.placement.rows, rows.begin, piece));
    PassCrashPoint("shards: part written");
    return OkStatus();
  }
};

class RestoreShardsKernel : public ShardsKernel {
 public:
  using ShardsKernel::ShardsKernel;

 protected:
  Status Check(tf::Var*, const SavedTable&, int64_t) const override { return OkStatus(); }

  Status Run(Communicator& communicator, const Arguments& arguments, tf::Tensor*) const override {
    return RestoreAll(communicator, arguments).WithPrefix(absl::StrCat("checkpoint ", arguments.prefix, ": "));
  }

 private:
  Status RestoreAll(Communicator& communicator, const Arguments& arguments) const {
    tf::BundleReader file(tf::Env::Default(), arguments.prefix);
    LOCKSTEP_RETURN_IF_ERROR(Meet(communicator, Damage(FromTensorFlow(file.status()))));
    // All tables are checked before the first one is changed.
    std::vector<std::unique_ptr<RowsReader>> readers;
    LOCKSTEP_RETURN_IF_ERROR(Meet(communicator, OpenAll(communicator, arguments, &file, &readers)));
    for (size_t t = 0; t < tables().size(); ++t) {
      LOCKSTEP_RETURN_IF_ERROR(Restore(communicator, tables()[t], *readers[t], arguments.variables[t].get()));
    }
    return OkStatus();
  }

  Status OpenAll(const Communicator& communicator, const Arguments& arguments, tf::BundleReader* file,
                 std::vector<std::unique_ptr<RowsReader>>* readers) const {
    for (const SavedTable& table : tables()) {
      const RowRange range = table.placement.ContiguousRange(communicator.rank(), communicator.size());
      auto reader = RowsReader::Open(file, arguments.prefix, table.name, table.dtype, table.shape, range);
      if (!reader.ok()) return Damage(reader.status());
      readers->push_back(*std::move(reader));
    }
    return OkStatus();
  }

  // If it fails, the variable has rows of the checkpoint and others. Then it counts as not initialized.
  Status Restore(Communicator& communicator, const SavedTable& table, RowsReader& reader, tf::Var* variable) const {
    const tf::TensorShape own = table.With(table.placement.LocalRows(communicator.rank(), communicator.size()));
    const tf::mutex_lock lock(*variable->mu());
    tf::Tensor* const rows = variable->tensor();
    if (!variable->is_initialized || rows->dtype() != table.dtype || rows->shape() != own || !rows->RefCountIsOne()) {
      *rows = tf::Tensor();  // the old rows go before memory for the new ones is taken
      *rows = tf::Tensor(table.dtype, own);
    }
    variable->is_initialized = false;
    const int64_t end = table.placement.ContiguousRange(communicator.rank(), communicator.size()).end;
    const auto fill = [&](RowRange range, char* data) -> Status {
      LOCKSTEP_RETURN_IF_ERROR(reader.Read(range.count(), data));
      return range.end == end ? reader.Finish() : OkStatus();
    };
    LOCKSTEP_RETURN_IF_ERROR(RelayFromContiguous(communicator, table.Collective(collective_name()), table.moved(), fill,
                                                 Data(*rows), PieceBytes(table, communicator.size())));
    variable->is_initialized = true;
    return OkStatus();
  }
};

LOCKSTEP_COLLECTIVE_KERNEL("LockstepWriteShards", WriteShardsKernel);
LOCKSTEP_COLLECTIVE_KERNEL("LockstepRestoreShards", RestoreShardsKernel);

// The arguments of both ops.
#define LOCKSTEP_SHARDS_OP(name)      \
  LOCKSTEP_COLLECTIVE_OP(name)        \
      .Input("prefix: string")        \
      .Input("shards: N * resource")  \
      .Attr("N: int >= 1")            \
      .Attr("names: list(string)")    \
      .Attr("dtypes: list(type)")     \
      .Attr("shapes: list(shape)")    \
      .Attr("blocks: list(int)")      \
      .Attr("first_ranks: list(int)") \
      .Attr("piece_bytes: int = 0")

LOCKSTEP_SHARDS_OP("LockstepWriteShards")
    .Output("has_rows: bool")
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc(R"doc(
Writes a contiguous range of each table to this worker's file of a checkpoint.

prefix: of this worker's file.
shards: variables; this worker's rows of the tables.
names: of the tables' tensors in the checkpoint.
dtypes, shapes: those of the whole tables.
blocks, first_ranks: the tables' placements.
piece_bytes: the bytes that are moved at once; 0: some megabytes.
has_rows: whether the file has any content. An empty file must not be merged.
)doc");

LOCKSTEP_SHARDS_OP("LockstepRestoreShards").SetShapeFn(tf::shape_inference::NoOutputs).Doc(R"doc(
Restores this worker's rows of tables from a checkpoint; the arguments are those of LockstepWriteShards.

prefix: of the checkpoint.
)doc");

}  // namespace
}  // namespace lockstep
