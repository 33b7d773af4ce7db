// Saves a checkpoint of the job (save_job.h). The kernel collects this worker's state: snapshots, which take no time to
// begin. The job writes it, on one of two lanes:
//
//   in the step        on the lane of the step's collectives. The step ends when the checkpoint is in its place.
//   in the background  on the background lane, with a communicator of its own. The step continues at once.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tf/bridge/convert.h"
#include "tf/bridge/copies.h"
#include "tf/bridge/host_memory.h"
#include "tf/bridge/parallel.h"
#include "tf/checkpoint/save_job.h"
#include "tf/comm/collective_kernel.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

class SaveCheckpointKernel : public CollectiveKernel {
 public:
  explicit SaveCheckpointKernel(tf::OpKernelConstruction* construction) : CollectiveKernel(construction) {
    const auto get = [&](const char* name, auto* value) {
      const absl::Status got = construction->GetAttr(name, value);
      if (!got.ok()) construction->SetStatus(got);
    };
    get("own_variable_names", &variable_names_);
    get("own_variable_slices", &variable_slices_);
    get("table_names", &table_names_);
    get("own_tensor_names", &tensor_names_);
    get("own_tensor_slices", &tensor_slices_);
    get("changes", &changes_);
    get("track", &track_);
    get("part_rows", &part_rows_);
    get("piece_bytes", &piece_bytes_);
    get("background", &background_);
    Result<std::vector<SavedTable>> shards = SavedTablesOf(construction);
    OP_REQUIRES_OK(construction, ToTensorFlow(shards.status()));
    shards_ = *std::move(shards);
    const size_t inputs = 1 + variable_names_.size() + shards_.size() + table_names_.size() + tensor_names_.size();
    OP_REQUIRES(construction,
                variable_slices_.size() == variable_names_.size() && tensor_slices_.size() == tensor_names_.size() &&
                    construction->num_inputs() == static_cast<int>(inputs),
                absl::InvalidArgumentError("the lists of arguments have different lengths"));
    copies_.resize(variable_names_.size() + tensor_names_.size());
  }

 protected:
  Result<Exchange> Prepare(const Call& call) override {
    const std::string prefix(call.context->input(0).scalar<tf::tstring>()());
    if (prefix.empty() && !background_) return InvalidArgument("the checkpoint has no name");
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor saved, AllocateTemporary(call.context, tf::DT_STRING, {}));
    saved.scalar<tf::tstring>()() = prefix;
    call.context->set_output(0, saved);
    if (prefix.empty()) return TakeMemory(call);
    // The job tells the other workers of an error.
    auto job = std::make_shared<SaveJob>(collective_name(), prefix, Collect(call));
    if (!background_) return Exchange([job](Communicator& communicator) { return job->Run(communicator); });
    call.engine.background().Post([job](Communicator& communicator) { return job->Run(communicator); },
                                  [job] { job->Drop(); });
    return Exchange();
  }

 private:
  // Makes the copies of a save, for the memory that they leave to the next one.
  Result<Exchange> TakeMemory(const Call& call) {
    const MutexLock lock(mutex_);
    SavedState state;
    const Status copied = CollectOwn(call, &state);
    state.Drop();
    LOCKSTEP_RETURN_IF_ERROR(copied);
    return Exchange();
  }

  Result<SavedState> Collect(const Call& call) {
    SavedState state;
    const Status collected = CollectInto(call, &state);
    if (collected.ok()) return state;
    state.Drop();
    return collected;
  }

  Status CollectInto(const Call& call, SavedState* collected) {
    const MutexLock lock(mutex_);
    SavedState& state = *collected;
    state.changes = changes_;
    state.piece_bytes = piece_bytes_;
    if (part_rows_ != 0) state.part_rows = part_rows_;
    tf::OpKernelContext* const context = call.context;
    const Communicator& communicator = call.engine.communicator();
    LOCKSTEP_RETURN_IF_ERROR(CollectOwn(call, &state));
    int input = 1 + static_cast<int>(variable_names_.size());
    for (const SavedTable& table : shards_) {
      TrackedRows::Pointer tracked = TrackedRows::Find(context, tf::HandleFromInput(context, input));
      LOCKSTEP_ASSIGN_OR_RETURN(auto snapshot, SnapshotOf(context, input++, table.name, nullptr));
      LOCKSTEP_RETURN_IF_ERROR(Check(*snapshot, table, communicator));
      if (changes_) {
        if (tracked == nullptr || !tracked->known_checkpoint()) return ChangesUnknown(table.name);
        state.previous = tracked->known_checkpoint();
      }
      state.shards.push_back({table, std::move(snapshot), std::move(tracked), {}});
    }
    // Snapshots begin last: nothing fails once they have begun.
    for (const std::string& name : table_names_) {
      LOCKSTEP_RETURN_IF_ERROR(BeginSnapshot(context, input++, name, &state));
    }
    return OkStatus();
  }

  // The variables and tensors that this worker saves whole.
  Status CollectOwn(const Call& call, SavedState* state) LOCKSTEP_REQUIRES(mutex_) {
    tf::OpKernelContext* const context = call.context;
    for (size_t v = 0; v < variable_names_.size(); ++v) {
      LOCKSTEP_ASSIGN_OR_RETURN(auto snapshot, SnapshotOf(context, 1 + static_cast<int>(v), variable_names_[v],
                                                          background_ ? &copies_[v] : nullptr));
      state->variables.push_back({variable_names_[v], variable_slices_[v], std::move(snapshot)});
    }
    const ParallelFor parallel = ParallelForOf(context);
    int input = context->num_inputs() - static_cast<int>(tensor_names_.size());
    for (size_t t = 0; t < tensor_names_.size(); ++t) {
      const tf::Tensor& value = context->input(input++);
      // The memory may be a variable's, which changes in place.
      tf::Tensor kept = value;
      if (background_) {
        LOCKSTEP_ASSIGN_OR_RETURN(kept, copies_[variable_names_.size() + t].Copy(value, parallel));
      }
      state->tensors.push_back({tensor_names_[t], tensor_slices_[t], std::move(kept)});
    }
    return OkStatus();
  }

  static Status ChangesUnknown(const std::string& table) {
    return FailedPrecondition(
        absl::StrCat("table '", table, "': its changes since the last checkpoint are not known; ", "save a full one"));
  }

  // memory: for a copy of a variable that changes as a whole; null: nothing changes while the snapshot is read.
  static Result<std::shared_ptr<VariableSnapshot>> SnapshotOf(tf::OpKernelContext* context, int input,
                                                              const std::string& name, CopyMemory* memory) {
    const tf::ResourceHandle& handle = tf::HandleFromInput(context, input);
    tf::core::RefCountPtr<tf::Var> variable;
    const absl::Status found = tf::LookupResource(context, handle, &variable);
    const std::string where = absl::StrCat("variable '", name, "': ");
    LOCKSTEP_RETURN_IF_ERROR(CheckOnHost(handle));
    if (!found.ok()) return FailedPrecondition(absl::StrCat(where, "it is not initialized"));
    Result<std::shared_ptr<VariableSnapshot>> snapshot =
        memory == nullptr ? VariableSnapshot::Begin(std::move(variable))
                          : VariableSnapshot::BeginOfAny(std::move(variable), ParallelForOf(context), memory);
    if (!snapshot.ok()) return snapshot.status().WithPrefix(where);
    return snapshot;
  }

  static Status Check(const VariableSnapshot& snapshot, const SavedTable& table, const Communicator& communicator) {
    LOCKSTEP_RETURN_IF_ERROR(table.CheckPlacement(communicator));
    const tf::TensorShape own = table.With(table.placement.LocalRows(communicator.rank(), communicator.size()));
    if (snapshot.dtype() == table.dtype && snapshot.shape() == own) return OkStatus();
    return InvalidArgument(absl::StrCat("table '", table.name, "': its variable is ",
                                        tf::DataTypeString(snapshot.dtype()), snapshot.shape().DebugString(),
                                        ", wanted ", tf::DataTypeString(table.dtype), own.DebugString()));
  }

  Status BeginSnapshot(tf::OpKernelContext* context, int input, const std::string& name, SavedState* state) const {
    SavedState::Dynamic dynamic{.name = name};
    LOCKSTEP_ASSIGN_OR_RETURN(dynamic.table, TableOf(context, input));
    DynamicTableResource& table = *dynamic.table;
    if (track_) table.table().TrackChanges();
    if (changes_) state->previous = table.checkpoint_id();
    LOCKSTEP_RETURN_IF_ERROR(table.BeginSnapshot(changes_ ? Snapshot::Kind::kChanges : Snapshot::Kind::kFull));
    LOCKSTEP_ASSIGN_OR_RETURN(dynamic.snapshot, table.snapshot());
    dynamic.counts = CountsOf(*dynamic.snapshot);
    dynamic.clock = table.clock();
    state->tables.push_back(std::move(dynamic));
    return OkStatus();
  }

  std::vector<std::string> variable_names_, variable_slices_, table_names_, tensor_names_, tensor_slices_;
  std::vector<SavedTable> shards_;
  bool changes_ = false, track_ = false, background_ = false;
  int64_t part_rows_ = 0, piece_bytes_ = 0;
  Mutex mutex_;
  std::vector<CopyMemory> copies_ LOCKSTEP_GUARDED_BY(mutex_);  // of the variables, then of the tensors
};

LOCKSTEP_COLLECTIVE_KERNEL("LockstepSaveCheckpoint", SaveCheckpointKernel);

LOCKSTEP_COLLECTIVE_OP("LockstepSaveCheckpoint")
    .Input("prefix: string")
    .Input("variables: own_V * resource")
    .Input("shards: S * resource")
    .Input("tables: T * resource")
    .Input("tensors: own_types")
    .Output("saved: string")
    .Attr("own_V: int >= 0")
    .Attr("S: int >= 0")
    .Attr("T: int >= 0")
    .Attr("own_types: list(type) >= 0")
    .Attr("own_variable_names: list(string) >= 0")
    .Attr("own_variable_slices: list(string) >= 0")
    .Attr("shard_names: list(string) >= 0")
    .Attr("shard_dtypes: list(type) >= 0")
    .Attr("shard_shapes: list(shape) >= 0")
    .Attr("blocks: list(int) >= 0")
    .Attr("first_ranks: list(int) >= 0")
    .Attr("table_names: list(string) >= 0")
    .Attr("own_tensor_names: list(string) >= 0")
    .Attr("own_tensor_slices: list(string) >= 0")
    .Attr("changes: bool = false")
    .Attr("track: bool = false")
    .Attr("part_rows: int = 0")
    .Attr("piece_bytes: int = 0")
    .Attr("background: bool = false")
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc(R"doc(
Saves a checkpoint of the job. All workers run it at the same step.

prefix: of the checkpoint. "" in the background: nothing is saved; the op takes the memory for the copies of a save.
variables: Resource variables that this worker saves whole.
shards: Resource variables; this worker's rows of sharded tables. The same tables on all workers.
tables: Dynamic tables, the same on all workers.
tensors: Other values that this worker saves.
saved: The prefix.
own_variable_names: Names of the variables in the checkpoint.
own_variable_slices: "", or which part of a larger tensor the variable is, in the form of TensorFlow's SaveV2.
shard_names, shard_dtypes, shard_shapes: Those of the whole sharded tables.
blocks, first_ranks: The sharded tables' placements.
table_names: Names of the dynamic tables.
own_tensor_names, own_tensor_slices: Like those of the variables.
changes: Of tables, only changes since the last checkpoint; FailedPrecondition if they are not known.
track: Dynamic tables record changes from now on.
part_rows: Rows of a dynamic table that are examined at once; 0: as many as take some megabytes.
piece_bytes: Bytes of other tables that are moved at once; 0: some megabytes.
background: The op ends at once, and the checkpoint is written while the program goes on. Its end, and its error, are
  the background lane's.
)doc");

}  // namespace
}  // namespace lockstep
