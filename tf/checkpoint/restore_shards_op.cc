// Restores sharded tables from a checkpoint, without a copy of a worker's rows. In a checkpoint a table is one tensor,
// by id. Each worker reads a contiguous range of it, and the rows pass from the ranges to their owners in pieces
// (core/sharding/table.h):
//
//   rows of the variable  ◄── exchange ◄── rows of the tensor, from any slices     piece by piece
//
// A piece takes 8 MiB, or 1/256 of the largest share if that is more (kMostSlices). save_job.h writes them.
//
// The arguments are lists with a place for each table. Slots of optimizers are tables as well. An error on one worker
// (a damaged file) is returned on all of them.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/sharding/table.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "tf/bridge/convert.h"
#include "tf/checkpoint/bundle_rows.h"
#include "tf/checkpoint/rows_reader.h"
#include "tf/checkpoint/saved_table.h"
#include "tf/comm/collective_kernel.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;
using VariablePointer = tf::core::RefCountPtr<tf::Var>;

// Input 0 is the checkpoint's prefix; the others are the variables.
class RestoreShardsKernel : public CollectiveKernel {
 public:
  explicit RestoreShardsKernel(tf::OpKernelConstruction* construction) : CollectiveKernel(construction) {
    Result<std::vector<SavedTable>> tables = SavedTablesOf(construction);
    OP_REQUIRES_OK(construction, ToTensorFlow(tables.status()));
    tables_ = *std::move(tables);
    OP_REQUIRES(construction, construction->num_inputs() == static_cast<int>(tables_.size()) + 1,
                absl::InvalidArgumentError("the lists of arguments have different lengths"));
    OP_REQUIRES_OK(construction, construction->GetAttr("piece_bytes", &piece_bytes_));
  }

 protected:
  Result<Exchange> Prepare(const Call& call) override {
    auto arguments = std::make_shared<Arguments>();
    arguments->prefix = std::string(call.context->input(0).scalar<tf::tstring>()());
    for (size_t t = 0; t < tables_.size(); ++t) {
      const SavedTable& table = tables_[t];
      LOCKSTEP_RETURN_IF_ERROR(table.CheckPlacement(call.engine.communicator()));
      const tf::ResourceHandle& handle = tf::HandleFromInput(call.context, static_cast<int>(t) + 1);
      LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(tf::LookupOrCreateResource<tf::Var>(
          call.context, handle, &arguments->variables.emplace_back(), [&table](tf::Var** made) {
            *made = new tf::Var(table.dtype);
            return absl::OkStatus();
          })));
    }
    return Exchange([this, arguments](Communicator& communicator) {
      return RestoreAll(communicator, *arguments).WithPrefix(absl::StrCat("checkpoint ", arguments->prefix, ": "));
    });
  }

 private:
  // The arguments of a call; they live until the exchange has ended.
  struct Arguments {
    std::string prefix;
    std::vector<VariablePointer> variables;
  };

  Status RestoreAll(Communicator& communicator, const Arguments& arguments) const {
    tf::BundleReader file(tf::Env::Default(), arguments.prefix);
    LOCKSTEP_RETURN_IF_ERROR(Meet(communicator, collective_name(), Damage(FromTensorFlow(file.status()))));
    // All tables are checked before the first one is changed.
    std::vector<std::unique_ptr<RowsReader>> readers;
    LOCKSTEP_RETURN_IF_ERROR(Meet(communicator, collective_name(), OpenAll(communicator, arguments, &file, &readers)));
    for (size_t t = 0; t < tables_.size(); ++t) {
      LOCKSTEP_RETURN_IF_ERROR(Restore(communicator, tables_[t], *readers[t], arguments.variables[t].get()));
    }
    return OkStatus();
  }

  Status OpenAll(const Communicator& communicator, const Arguments& arguments, tf::BundleReader* file,
                 std::vector<std::unique_ptr<RowsReader>>* readers) const {
    for (const SavedTable& table : tables_) {
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
                                                 Data(*rows), table.PieceBytes(piece_bytes_, communicator.size())));
    variable->is_initialized = true;
    return OkStatus();
  }

  std::vector<SavedTable> tables_;
  int64_t piece_bytes_ = 0;
};

LOCKSTEP_COLLECTIVE_KERNEL("LockstepRestoreShards", RestoreShardsKernel);

LOCKSTEP_COLLECTIVE_OP("LockstepRestoreShards")
    .Input("prefix: string")
    .Input("shards: S * resource")
    .Attr("S: int >= 1")
    .Attr("shard_names: list(string)")
    .Attr("shard_dtypes: list(type)")
    .Attr("shard_shapes: list(shape)")
    .Attr("blocks: list(int)")
    .Attr("first_ranks: list(int)")
    .Attr("piece_bytes: int = 0")
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(R"doc(
Restores this worker's rows of tables from a checkpoint; the arguments are those of LockstepSaveCheckpoint.

prefix: of the checkpoint.
)doc");

}  // namespace
}  // namespace lockstep
