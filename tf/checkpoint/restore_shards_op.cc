// Restores sharded tables from a checkpoint, without a copy of a worker's rows. In a checkpoint a table is one tensor,
// by id. Each worker reads a contiguous range of it, and the rows pass from the ranges to their owners in pieces
// (core/sharding/table.h):
//
//   rows of the variable  ◄── exchange ◄── rows of the tensor, from any slices     piece by piece
//
// A piece takes 8 MiB, or 1/256 of the largest share if that is more (kMostSlices). save_job.h writes them.
//
// An incremental checkpoint may have only a table's changed rows (saved_table.h). They are in no order, so each worker
// reads the ids of all of them, and the rows of those pieces that have any of its own. If as many workers have saved
// it, these are the pieces that it has written itself.
//
// The arguments are lists with a place for each table. Slots of optimizers are tables as well. An error on one worker
// (a damaged file) is returned on all of them.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/sharding/table.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "tf/bridge/convert.h"
#include "tf/bridge/host_memory.h"
#include "tf/bridge/parallel.h"
#include "tf/checkpoint/bundle_rows.h"
#include "tf/checkpoint/job_steps.h"
#include "tf/checkpoint/rows_reader.h"
#include "tf/checkpoint/saved_table.h"
#include "tf/checkpoint/table_layout.h"
#include "tf/checkpoint/tracked_rows.h"
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
    OP_REQUIRES_OK(construction, construction->GetAttr("changes", &changes_));
  }

 protected:
  Result<Exchange> Prepare(const Call& call) override {
    auto arguments = std::make_shared<Arguments>(ParallelForOf(call.context));
    arguments->prefix = std::string(call.context->input(0).scalar<tf::tstring>()());
    for (size_t t = 0; t < tables_.size(); ++t) {
      const SavedTable& table = tables_[t];
      LOCKSTEP_RETURN_IF_ERROR(table.CheckPlacement(call.engine.communicator()));
      const tf::ResourceHandle& handle = tf::HandleFromInput(call.context, static_cast<int>(t) + 1);
      LOCKSTEP_RETURN_IF_ERROR(CheckOnHost(handle));
      LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(tf::LookupOrCreateResource<tf::Var>(
          call.context, handle, &arguments->variables.emplace_back(), [&table](tf::Var** made) {
            *made = new tf::Var(table.dtype);
            return absl::OkStatus();
          })));
      LOCKSTEP_ASSIGN_OR_RETURN(arguments->tracked.emplace_back(), TrackedRows::Of(call.context, handle));
    }
    return Exchange([this, arguments](Communicator& communicator) {
      return RestoreAll(communicator, *arguments).WithPrefix(absl::StrCat("checkpoint ", arguments->prefix, ": "));
    });
  }

 private:
  // The readers of a table: of its rows, or of the changed ones.
  struct Source {
    std::unique_ptr<RowsReader> rows;
    std::unique_ptr<RowsReader> changed_ids, changed_rows;
    int64_t changed = 0;
  };
  // The arguments of a call; they live until the exchange has ended.
  struct Arguments {
    explicit Arguments(ParallelFor parallel) : parallel(std::move(parallel)) {}

    const ParallelFor parallel;
    std::string prefix;
    std::vector<VariablePointer> variables;
    std::vector<TrackedRows::Pointer> tracked;
    std::optional<int64_t> checkpoint_id, previous;  // of the checkpoint, and of the one on which it builds
  };

  Status RestoreAll(Communicator& communicator, Arguments& arguments) const {
    tf::BundleReader file(tf::Env::Default(), arguments.prefix);
    LOCKSTEP_RETURN_IF_ERROR(AgreeOnStatus(communicator, collective_name(), Damage(FromTensorFlow(file.status()))));
    // All tables are checked before the first one is changed.
    std::vector<Source> sources;
    LOCKSTEP_RETURN_IF_ERROR(
        AgreeOnStatus(communicator, collective_name(), OpenAll(communicator, &arguments, &file, &sources)));
    for (size_t t = 0; t < tables_.size(); ++t) {
      tf::Var* const variable = arguments.variables[t].get();
      if (sources[t].rows != nullptr) {
        LOCKSTEP_RETURN_IF_ERROR(Restore(communicator, tables_[t], *sources[t].rows, variable));
        SetCheckpoint(arguments, t, nullptr);
        continue;
      }
      std::vector<int64_t> changed;
      const Status restored = RestoreChanges(communicator, tables_[t], sources[t], variable, &changed);
      LOCKSTEP_RETURN_IF_ERROR(AgreeOnStatus(communicator, collective_name(), restored));
      SetCheckpoint(arguments, t, &changed);
    }
    return OkStatus();
  }

  Status OpenAll(const Communicator& communicator, Arguments* arguments, tf::BundleReader* file,
                 std::vector<Source>* sources) const {
    if (file->Contains(kCheckpointIdTensor)) {
      tf::Tensor numbers(tf::DT_INT64, {2});
      LOCKSTEP_RETURN_IF_ERROR(Damage(FromTensorFlow(file->Lookup(kCheckpointIdTensor, &numbers))));
      const auto values = numbers.flat<int64_t>();
      if (values(0) != TableLayout::kNoCheckpoint) arguments->checkpoint_id = values(0);
      if (values(1) != TableLayout::kNoCheckpoint) arguments->previous = values(1);
    }
    for (size_t t = 0; t < tables_.size(); ++t) {
      const SavedTable& table = tables_[t];
      if (changes_) LOCKSTEP_RETURN_IF_ERROR(CheckBase(*arguments, t));
      if (file->Contains(ChangedIds(table.name))) {
        if (!changes_) return Incremental(table.name);
        tf::Var* const variable = arguments->variables[t].get();
        {
          const tf::tf_shared_lock lock(*variable->mu());
          LOCKSTEP_RETURN_IF_ERROR(CheckHolds(communicator, table, variable));
        }
        LOCKSTEP_RETURN_IF_ERROR(Damage(OpenChanges(table, arguments->prefix, file, &sources->emplace_back())));
        continue;
      }
      const RowRange range = table.placement.ContiguousRange(communicator.rank(), communicator.size());
      auto reader = RowsReader::Open(file, arguments->prefix, table.name, table.dtype, table.shape, range);
      if (!reader.ok()) return Damage(reader.status());
      sources->emplace_back().rows = *std::move(reader);
    }
    return OkStatus();
  }

  static Status OpenChanges(const SavedTable& table, const std::string& prefix, tf::BundleReader* file,
                            Source* source) {
    tf::DataType type;
    tf::TensorShape stored;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(file->LookupDtypeAndShape(ChangedIds(table.name), &type, &stored)));
    const int64_t count = source->changed = stored.dims() == 0 ? 0 : stored.dim_size(0);
    const auto open = [&](const std::string& name, tf::DataType dtype, const tf::TensorShape& shape) {
      return RowsReader::Open(file, prefix, name, dtype, shape, {0, count});
    };
    if (stored.dims() != 1) {
      return InvalidArgument(absl::StrCat("tensor '", ChangedIds(table.name), "' is ", tf::DataTypeString(type),
                                          stored.DebugString(), " in the checkpoint, wanted a list of ids"));
    }
    LOCKSTEP_RETURN_IF_ERROR(CheckChanges(ChangedIds(table.name), count, table.placement.rows));
    LOCKSTEP_ASSIGN_OR_RETURN(source->changed_ids, open(ChangedIds(table.name), tf::DT_INT64, {count}));
    LOCKSTEP_ASSIGN_OR_RETURN(source->changed_rows, open(ChangedValues(table.name), table.dtype, table.With(count)));
    return OkStatus();
  }

  // Returns FAILED_PRECONDITION unless the variable, whose mutex is held, holds the worker's rows.
  static Status CheckHolds(const Communicator& communicator, const SavedTable& table, tf::Var* variable) {
    const tf::Tensor& own = *variable->tensor();
    const tf::TensorShape wanted = table.With(table.placement.LocalRows(communicator.rank(), communicator.size()));
    if (variable->is_initialized && own.dtype() == table.dtype && own.shape() == wanted) return OkStatus();
    return FailedPrecondition(absl::StrCat("table '", table.name, "': it is not initialized: an increment is ",
                                           "restored after the checkpoints that it builds on"));
  }

  static Status Incremental(const std::string& table) {
    return InvalidArgument(absl::StrCat("table '", table, "': it is incremental; restore it with the incremental ",
                                        "saver, after the checkpoints that it builds on"));
  }

  // An increment written before tables had numbers is taken as it is: it has all rows.
  Status CheckBase(const Arguments& arguments, size_t t) const {
    const std::optional<int64_t> held = arguments.tracked[t]->checkpoint_id();
    if (!arguments.checkpoint_id || arguments.previous == held) return OkStatus();
    return FailedPrecondition(absl::StrCat("table '", tables_[t].name, "': it builds on checkpoint id ",
                                           arguments.previous.value_or(TableLayout::kNoCheckpoint),
                                           ", but the table holds id ", held.value_or(TableLayout::kNoCheckpoint),
                                           ": a checkpoint between them is missing, or was replaced"));
  }

  // changed: the local rows that were restored, or null: all.
  void SetCheckpoint(const Arguments& arguments, size_t t, const std::vector<int64_t>* changed) const {
    if (!changes_) return arguments.tracked[t]->Restored(arguments.checkpoint_id);
    tf::Var* const variable = arguments.variables[t].get();
    const tf::tf_shared_lock lock(*variable->mu());
    arguments.tracked[t]->RestoredIncrement(arguments.checkpoint_id, changed, *variable->tensor(), arguments.parallel);
  }

  // If it fails, the variable counts as not initialized, as in Restore.
  Status RestoreChanges(const Communicator& communicator, const SavedTable& table, Source& source, tf::Var* variable,
                        std::vector<int64_t>* changed) const {
    const int rank = communicator.rank(), workers = communicator.size();
    const tf::mutex_lock lock(*variable->mu());
    LOCKSTEP_RETURN_IF_ERROR(CheckHolds(communicator, table, variable));  // nothing has changed it meanwhile
    tf::Tensor* const own = variable->tensor();
    if (!own->RefCountIsOne()) *own = tf::tensor::DeepCopy(*own);
    variable->is_initialized = false;  // until all rows are there
    const int64_t row_bytes = table.row_bytes();
    const int64_t piece_rows =
        std::max<int64_t>(1, table.PieceBytes(piece_bytes_, workers) /
                                 std::max<int64_t>(static_cast<int64_t>(sizeof(int64_t)), row_bytes));
    std::vector<int64_t> ids(std::min(piece_rows, source.changed));
    std::vector<char> rows(ids.size() * row_bytes);
    const auto is_own = [&](int64_t id) { return table.placement.Owner(id, workers) == rank; };
    for (int64_t begin = 0; begin < source.changed; begin += piece_rows) {
      const int64_t here = std::min(piece_rows, source.changed - begin);
      LOCKSTEP_RETURN_IF_ERROR(source.changed_ids->Read(here, reinterpret_cast<char*>(ids.data())));
      ids.resize(here);
      for (const int64_t id : ids) {
        if (id >= 0 && id < table.placement.rows) continue;
        return DataLoss(absl::StrCat("table '", table.name, "': an increment has the id ", id, ", wanted one in [0, ",
                                     table.placement.rows, ")"));
      }
      if (std::none_of(ids.begin(), ids.end(), is_own)) {
        LOCKSTEP_RETURN_IF_ERROR(source.changed_rows->Skip(here));
        continue;
      }
      LOCKSTEP_RETURN_IF_ERROR(source.changed_rows->Read(here, rows.data()));
      for (int64_t i = 0; i < here; ++i) {
        if (!is_own(ids[i])) continue;
        changed->push_back(table.placement.LocalRow(ids[i], workers));
        std::memcpy(static_cast<char*>(Data(*own)) + changed->back() * row_bytes, rows.data() + i * row_bytes,
                    row_bytes);
      }
    }
    variable->is_initialized = true;
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
  bool changes_ = false;
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
    .Attr("changes: bool = false")
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(R"doc(
Restores this worker's rows of tables from a checkpoint; the arguments are those of LockstepSaveCheckpoint.

prefix: of the checkpoint.
changes: It is an incremental one: the tables hold the one on which it builds. FailedPrecondition if they do not.
)doc");

}  // namespace
}  // namespace lockstep
