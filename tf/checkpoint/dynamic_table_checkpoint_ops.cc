// Restores dynamic tables, and saves the tables in checkpoints of objects (tables/dynamic/serialized.py). The
// checkpoints of jobs are saved by save_op.cc. A save, on every worker, between two training steps:
//
//   op                        does
//   LockstepBeginSnapshots    begins a snapshot of all tables; returns the numbers of keys, which the workers exchange
//   LockstepWriteTables       writes this worker's file (table_writer.h), to be merged with the other workers' files
//   LockstepJoinStrings       on worker 0, writes one file of the string keys of all workers
//   LockstepEndSnapshots      when the checkpoint is complete: later changes count as changed since this one
//
// A restore is LockstepRestoreTables (table_reader.h), for tables that have been created.
//
// Letters: T tables, W workers.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/env.h"
#include "tf/bridge/convert.h"
#include "tf/bridge/host_memory.h"
#include "tf/bridge/parallel.h"
#include "tf/checkpoint/bundle_rows.h"
#include "tf/checkpoint/table_reader.h"
#include "tf/checkpoint/table_writer.h"
#include "tf/checkpoint/tracked_rows.h"
#include "tf/table/table_resource.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;
using tf::shape_inference::InferenceContext;

constexpr int kCounts = std::tuple_size_v<TableCounts>;

// Base of the kernels: the tables are the last T inputs, and their names in checkpoints are an attribute.
class TablesKernel : public tf::OpKernel {
 public:
  explicit TablesKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("names", &names_));
    int tables = 0;
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &tables));
    OP_REQUIRES(construction, static_cast<size_t>(tables) == names_.size(),
                absl::InvalidArgumentError(absl::StrCat(names_.size(), " names for ", tables, " tables")));
  }

  void Compute(tf::OpKernelContext* context) final {
    const Status status = Run(context);
    if (!status.ok()) {
      // While a snapshot is left unread, every change is copied aside. Therefore it is dropped. The first error is
      // already known.
      (void)ForEach(context, [](DynamicTableResource& table, int) {
        table.DropSnapshot();
        return OkStatus();
      });
    }
    OP_REQUIRES_OK(context, ToTensorFlow(status));
  }

 protected:
  virtual Status Run(tf::OpKernelContext* context) = 0;

  // Calls use(table, its number) for each table.
  template <typename Use>
  Status ForEach(tf::OpKernelContext* context, Use&& use) const {
    const int first = context->num_inputs() - static_cast<int>(names_.size());
    for (size_t t = 0; t < names_.size(); ++t) {
      LOCKSTEP_ASSIGN_OR_RETURN(const auto table, TableOf(context, first + static_cast<int>(t)));
      LOCKSTEP_RETURN_IF_ERROR(use(*table, static_cast<int>(t)));
    }
    return OkStatus();
  }

  std::vector<std::string> names_;
};

class BeginSnapshotsKernel : public TablesKernel {
 public:
  using TablesKernel::TablesKernel;

 protected:
  Status Run(tf::OpKernelContext* context) override {
    const int64_t tables = static_cast<int64_t>(names_.size());
    tf::Tensor *counts, *checkpoint_id;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_output(0, {tables, kCounts}, &counts)));
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_output(1, {}, &checkpoint_id)));
    checkpoint_id->scalar<int64_t>()() = NewCheckpointId();
    return ForEach(context, [&](DynamicTableResource& table, int t) -> Status {
      LOCKSTEP_RETURN_IF_ERROR(table.BeginSnapshot(Snapshot::Kind::kFull));
      LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<Snapshot> snapshot, table.snapshot());
      const TableCounts of_table = CountsOf(*snapshot);
      std::copy(of_table.begin(), of_table.end(), &counts->matrix<int64_t>()(t, 0));
      return OkStatus();
    });
  }
};

class WriteTablesKernel : public TablesKernel {
 public:
  explicit WriteTablesKernel(tf::OpKernelConstruction* construction) : TablesKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("rank", &rank_));
    OP_REQUIRES_OK(construction, construction->GetAttr("part_rows", &part_rows_));
  }

 protected:
  Status Run(tf::OpKernelContext* context) override {
    const std::string prefix(context->input(0).scalar<tf::tstring>()());
    const tf::Tensor& counts = context->input(1);
    const int64_t checkpoint_id = context->input(2).scalar<int64_t>()();
    const int64_t tables = static_cast<int64_t>(names_.size());
    if (counts.dims() != 3 || counts.dim_size(1) != tables || counts.dim_size(2) != kCounts ||
        counts.dim_size(0) <= rank_) {
      return InvalidArgument(absl::StrCat("counts of shape ", counts.shape().DebugString(), ", wanted [workers,",
                                          tables, ",", kCounts, "]"));
    }
    const std::string where = absl::StrCat("checkpoint ", prefix, ": ");
    tf::BundleWriter file(context->env(), prefix);
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(file.status()).WithPrefix(where));
    TableFiles files(&file, prefix);
    const auto column = [&](int table, int which) {
      std::vector<int64_t> of_workers;
      for (int64_t w = 0; w < counts.dim_size(0); ++w) {
        of_workers.push_back(counts.tensor<int64_t, 3>()(w, table, which));
      }
      return TableParts(of_workers);
    };
    LOCKSTEP_RETURN_IF_ERROR(ForEach(context, [&](DynamicTableResource& table, int t) -> Status {
      TableShare share{rank_, /*changes=*/false, column(t, 0), column(t, 1), column(t, 2)};
      share.checkpoint_id = checkpoint_id;
      if (part_rows_ != 0) share.part_rows = part_rows_;
      share.clock = table.clock();
      return files.Write(&table, names_[t], std::move(share)).WithPrefix(where);
    }));
    LOCKSTEP_RETURN_IF_ERROR(files.Finish().WithPrefix(where));
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(file.Finish()).WithPrefix(where));
    tf::Tensor* has_rows;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_output(0, {}, &has_rows)));
    has_rows->scalar<bool>()() = files.wrote();
    return OkStatus();
  }

 private:
  int rank_ = 0;
  int64_t part_rows_ = 0;
};

class JoinStringsKernel : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    const auto prefixes = context->input(0).flat<tf::tstring>();
    const std::string joined(context->input(1).scalar<tf::tstring>()());
    OP_REQUIRES_OK(
        context, ToTensorFlow(JoinStrings(context->env(), {prefixes.data(), prefixes.data() + prefixes.size()}, joined)
                                  .WithPrefix(absl::StrCat("checkpoint ", joined, ": "))));
  }
};

class EndSnapshotsKernel : public TablesKernel {
 public:
  using TablesKernel::TablesKernel;

 protected:
  Status Run(tf::OpKernelContext* context) override {
    const int64_t checkpoint_id = context->input(0).scalar<int64_t>()();
    return ForEach(context, [&](DynamicTableResource& table, int) { return table.EndSnapshot(checkpoint_id); });
  }
};

class RestoreTablesKernel : public TablesKernel {
 public:
  explicit RestoreTablesKernel(tf::OpKernelConstruction* construction) : TablesKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("rank", &rank_));
    OP_REQUIRES_OK(construction, construction->GetAttr("world_size", &world_size_));
    OP_REQUIRES_OK(construction, construction->GetAttr("changes", &changes_));
    OP_REQUIRES_OK(construction, construction->GetAttr("track", &track_));
    std::string part;
    OP_REQUIRES_OK(construction, construction->GetAttr("part", &part));
    if (part == "rows") part_ = TableReader::Part::kRows;
    if (part == "rows and slots") part_ = TableReader::Part::kRowsAndSlots;
    OP_REQUIRES(construction, !changes_ || part_ == TableReader::Part::kAll,
                absl::InvalidArgumentError("changes are restored with all their parts"));
  }

 protected:
  Status Run(tf::OpKernelContext* context) override {
    const std::string prefix(context->input(0).scalar<tf::tstring>()());
    tf::BundleReader file(context->env(), prefix);
    LOCKSTEP_RETURN_IF_ERROR(
        Damage(FromTensorFlow(file.status())).WithPrefix(absl::StrCat("checkpoint ", prefix, ": ")));
    return ForEach(context, [&](DynamicTableResource& table, int t) -> Status {
      // The state of an empty table is fully known: the rows that are restored now do not count as changes.
      if (track_) table.table().TrackChanges();
      return Damage(TableReader(&file, &table, names_[t], changes_, rank_, world_size_, part_).Restore())
          .WithPrefix(absl::StrCat("checkpoint ", prefix, ", table '", names_[t], "': "));
    });
  }

 private:
  int rank_ = 0, world_size_ = 1;
  bool changes_ = false, track_ = false;
  TableReader::Part part_ = TableReader::Part::kAll;
};

class TrackTablesKernel : public tf::OpKernel {
 public:
  explicit TrackTablesKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &tables_));
  }

  void Compute(tf::OpKernelContext* context) override {
    tf::Tensor* ids;
    OP_REQUIRES_OK(context, context->allocate_output(0, {context->num_inputs()}, &ids));
    for (int t = 0; t < context->num_inputs(); ++t) {
      const Result<std::optional<int64_t>> id = t < tables_ ? TrackTable(context, t) : TrackShard(context, t);
      OP_REQUIRES_OK(context, ToTensorFlow(id.status()));
      ids->flat<int64_t>()(t) = id->value_or(TableLayout::kNoCheckpoint);
    }
  }

 private:
  static Result<std::optional<int64_t>> TrackTable(tf::OpKernelContext* context, int input) {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto resource, TableOf(context, input));
    resource->table().TrackChanges();
    return resource->table().changes_known() ? resource->checkpoint_id() : std::nullopt;
  }

  static Result<std::optional<int64_t>> TrackShard(tf::OpKernelContext* context, int input) {
    const tf::ResourceHandle& handle = tf::HandleFromInput(context, input);
    tf::core::RefCountPtr<tf::Var> variable;
    if (!tf::LookupResource(context, handle, &variable).ok()) {
      return FailedPrecondition(absl::StrCat("variable '", handle.name(), "' is not initialized"));
    }
    LOCKSTEP_RETURN_IF_ERROR(CheckOnHost(handle));
    LOCKSTEP_ASSIGN_OR_RETURN(const auto tracked, TrackedRows::Of(context, handle));
    const tf::tf_shared_lock lock(*variable->mu());
    if (!variable->is_initialized) {
      return FailedPrecondition(absl::StrCat("variable '", handle.name(), "' is not initialized"));
    }
    tracked->Track(*variable->tensor(), ParallelForOf(context));
    return tracked->known_checkpoint();
  }

  int tables_ = 0;
};

absl::Status BeginShapes(InferenceContext* c) {
  int tables = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("T", &tables));
  c->set_output(0, c->Matrix(tables, kCounts));
  c->set_output(1, c->Scalar());
  return absl::OkStatus();
}

REGISTER_KERNEL_BUILDER(Name("LockstepTrackTables").Device(tf::DEVICE_CPU), TrackTablesKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepBeginSnapshots").Device(tf::DEVICE_CPU), BeginSnapshotsKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepWriteTables").Device(tf::DEVICE_CPU), WriteTablesKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepJoinStrings").Device(tf::DEVICE_CPU), JoinStringsKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepEndSnapshots").Device(tf::DEVICE_CPU), EndSnapshotsKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepRestoreTables").Device(tf::DEVICE_CPU), RestoreTablesKernel);

REGISTER_OP("LockstepTrackTables")
    .Input("tables: T * resource")
    .Input("shards: S * resource")
    .Output("checkpoint_ids: int64")
    .Attr("T: int >= 0")
    .Attr("S: int >= 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->num_inputs()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Makes tables record changes from now on.

tables: Dynamic tables.
shards: Resource variables; this worker's rows of sharded tables.
checkpoint_ids: [T + S], the ids of the checkpoints since which the changes are known, or 0.
)doc");

REGISTER_OP("LockstepBeginSnapshots")
    .Input("tables: T * resource")
    .Output("counts: int64")
    .Output("checkpoint_id: int64")
    .Attr("T: int >= 1")
    .Attr("names: list(string)")
    .SetIsStateful()
    .SetShapeFn(BeginShapes)
    .Doc(R"doc(
Begins a snapshot of each table between two steps.

counts: [T, 3]; for each table the numbers of admitted keys, candidates and removed keys.
checkpoint_id: an id for the checkpoint; the job uses that of worker 0.
)doc");

REGISTER_OP("LockstepWriteTables")
    .Input("prefix: string")
    .Input("counts: int64")
    .Input("checkpoint_id: int64")
    .Input("tables: T * resource")
    .Attr("T: int >= 1")
    .Attr("names: list(string)")
    .Attr("rank: int")
    .Attr("part_rows: int = 0")
    .Output("has_rows: bool")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc(R"doc(
Writes this worker's rows of the snapshots to a file of a checkpoint.

counts: [W, T, 3], the counts of all workers.
checkpoint_id: the checkpoint's id.
part_rows: the number of rows examined at once; 0: as many as take some megabytes.
has_rows: whether the file has any content. An empty file must not be merged.
)doc");

REGISTER_OP("LockstepJoinStrings")
    .Input("prefixes: string")
    .Input("joined: string")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(R"doc(
Joins the files of string keys that all workers wrote beside their files of tables.

prefixes: [W], the prefixes of their files of tables.
joined: the prefix of the joined file, to be merged with these.
)doc");

REGISTER_OP("LockstepEndSnapshots")
    .Input("checkpoint_id: int64")
    .Input("tables: T * resource")
    .Attr("T: int >= 1")
    .Attr("names: list(string)")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(R"doc(
Declares the checkpoint with this id complete: the next incremental one builds on it.
)doc");

REGISTER_OP("LockstepRestoreTables")
    .Input("prefix: string")
    .Input("tables: T * resource")
    .Attr("T: int >= 1")
    .Attr("names: list(string)")
    .Attr("changes: bool = false")
    .Attr("rank: int")
    .Attr("world_size: int")
    .Attr("track: bool = false")
    .Attr("part: {'all', 'rows', 'rows and slots'} = 'all'")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(R"doc(
Restores this worker's keys from a checkpoint into tables; existing keys are overwritten.

part: 'all', or the rows as initial values, without or with slots of optimizers: then steps and counts begin anew.
)doc");

}  // namespace
}  // namespace lockstep
