// The life of a dynamic table: its handle, its creation, the end of a step, and the removal of keys.
//
//   op                            is
//   LockstepDynamicTable          the handle; TensorFlow treats it like the handle of a variable [?, D]
//   LockstepDynamicTableCreate    the initializer: makes an empty table with the options in its attributes
//   LockstepDynamicTableIsReady   whether the initializer has run
//   LockstepDynamicTableEndStep   runs when the step's updates have been made
//   LockstepDynamicTableRemove    removes keys
//   LockstepDynamicTableDropSlots drops slots of optimizers that are gone
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/embedding/dynamic_table.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/table/table_kernel.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;
using tf::shape_inference::InferenceContext;

// Reads attributes into options; the first missing one is the error. A list of one is a value, an empty list is none.
class AttributeReader {
 public:
  explicit AttributeReader(tf::OpKernelConstruction* construction) : construction_(construction) {}

  template <typename T>
  void Read(const char* name, T* value) {
    if (status_.ok()) status_ = construction_->GetAttr(name, value);
  }
  template <typename T, typename Wide = T>
  void Read(const char* name, std::optional<T>* value) {
    std::vector<Wide> list;
    Read(name, &list);
    if (!list.empty()) *value = static_cast<T>(list[0]);
  }
  const absl::Status& status() const { return status_; }

 private:
  tf::OpKernelConstruction* construction_;
  absl::Status status_;
};

Result<InitialOptions::Kind> KindOf(const std::string& name) {
  using Kind = InitialOptions::Kind;
  if (name == "constant") return Kind::kConstant;
  if (name == "uniform") return Kind::kUniform;
  if (name == "normal") return Kind::kNormal;
  if (name == "truncated_normal") return Kind::kTruncatedNormal;
  if (name == "rows") return Kind::kRows;
  return InvalidArgument(absl::StrCat("initial values: kind '", name, "' is not known"));
}

absl::Status ReadOptions(tf::OpKernelConstruction* construction, DynamicTableOptions* options) {
  AttributeReader attributes(construction);
  std::string kind, order;
  int64_t seed = 0;
  tf::DataType row_type = tf::DT_FLOAT;
  attributes.Read("table_name", &options->name);
  attributes.Read("dim", &options->dim);
  attributes.Read("row_type", &row_type);
  attributes.Read("initial", &kind);
  attributes.Read("initial_a", &options->initial.a);
  attributes.Read("initial_b", &options->initial.b);
  attributes.Read("seed", &seed);
  attributes.Read("default_value", &options->default_value);
  attributes.Read("min_frequency", &options->admission.min_frequency);
  attributes.Read("bloom_keys", &options->admission.bloom_keys);
  attributes.Read<double, float>("bloom_false_positives", &options->admission.bloom_false_positives);
  attributes.Read("steps_to_live", &options->eviction.steps_to_live);
  attributes.Read("seconds_to_live", &options->eviction.seconds_to_live);
  attributes.Read("l2_threshold", &options->eviction.l2_threshold);
  attributes.Read("max_keys", &options->eviction.max_keys);
  attributes.Read("max_bytes", &options->eviction.max_bytes);
  attributes.Read("order", &order);
  attributes.Read("keys_per_call", &options->eviction.keys_per_call);
  attributes.Read("record_frequency", &options->record_frequency);
  attributes.Read("record_version", &options->record_version);
  attributes.Read("record_seconds", &options->record_seconds);
  attributes.Read("track_changes", &options->track_changes);
  attributes.Read("expected_keys", &options->expected_keys);
  TF_RETURN_IF_ERROR(attributes.status());
  options->initial.seed = static_cast<uint64_t>(seed);
  options->eviction.order = order == "lfu" ? EvictionOptions::Order::kLfu : EvictionOptions::Order::kLru;
  const Result<InitialOptions::Kind> known = KindOf(kind);
  if (!known.ok()) return ToTensorFlow(known.status());
  options->initial.kind = *known;
  const Result<DType> dtype = ToDType(row_type);
  if (!dtype.ok()) return ToTensorFlow(dtype.status());
  options->row_type = *dtype;
  return absl::OkStatus();
}

// Each run makes an empty table, as a variable's initializer does. Initial rows that were drawn stay the same: a
// restore runs it too, and the checkpoint's new keys should begin as they would have without the restart.
class CreateKernel : public tf::OpKernel {
 public:
  explicit CreateKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, ReadOptions(construction, &options_));
    OP_REQUIRES_OK(construction, construction->GetAttr("string_keys", &string_keys_));
    int64_t owner = 0;
    OP_REQUIRES_OK(construction, construction->GetAttr("key_owner", &owner));
    const Result<KeyPlacement> placement = KeyPlacement::OfNumber(owner);
    OP_REQUIRES(construction, placement.ok(),
                ToTensorFlow(placement.status().WithPrefix(absl::StrCat("table '", options_.name, "': "))));
    placement_ = *placement;
  }

  void Compute(tf::OpKernelContext* context) override {
    DynamicTableOptions options = options_;
    if (options.initial.kind == InitialOptions::Kind::kRows) {
      const auto rows = context->input(1).flat<float>();
      const auto before = TableOf(context, 0);
      const bool drawn = before.ok() && (*before)->table().options().initial.rows != nullptr &&
                         static_cast<int64_t>((*before)->table().options().initial.rows->size()) == rows.size();
      options.initial.rows = drawn ? (*before)->table().options().initial.rows
                                   : std::make_shared<std::vector<float>>(rows.data(), rows.data() + rows.size());
    }
    const Result<DynamicTableResource*> made = DynamicTableResource::Create(options, string_keys_, placement_);
    OP_REQUIRES(context, made.ok(), ToTensorFlow(made.status()));
    const tf::ResourceHandle& handle = tf::HandleFromInput(context, 0);
    const absl::Status deleted = tf::DeleteResource<DynamicTableResource>(context, handle);
    const absl::Status created = tf::CreateResource(context, handle, *made);
    if (!created.ok()) (*made)->Unref();
    OP_REQUIRES(context, deleted.ok() || absl::IsNotFound(deleted), deleted);
    OP_REQUIRES_OK(context, created);
  }

 private:
  DynamicTableOptions options_;
  bool string_keys_ = false;
  KeyPlacement placement_;
};

class EndStepKernel : public TableKernelBase {
 public:
  explicit EndStepKernel(tf::OpKernelConstruction* construction) : TableKernelBase(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("once_in_a_run", &once_in_a_run_));
  }

 protected:
  Status Run(tf::OpKernelContext* context, DynamicTableResource& table) override {
    // In tensors a negative number stands for the next step.
    const int64_t number = context->input(1).scalar<int64_t>()();
    std::optional<int64_t> step, run;
    if (number >= 0) step = number;
    if (once_in_a_run_) run = context->step_id();
    table.EndStep(step, run);
    return OkStatus();
  }

 private:
  bool once_in_a_run_ = false;
};

class ClockKernel : public TableKernelBase {
 public:
  using TableKernelBase::TableKernelBase;

 protected:
  Status Run(tf::OpKernelContext* context, DynamicTableResource& table) override {
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * out, AllocateTensor(context, 0, {2}));
    const DynamicTableResource::Clock clock = table.clock();
    out->flat<int64_t>()(0) = clock.step;
    out->flat<int64_t>()(1) = clock.changes;
    return OkStatus();
  }
};

class SetClockKernel : public TableKernelBase {
 public:
  using TableKernelBase::TableKernelBase;

 protected:
  Status Run(tf::OpKernelContext* context, DynamicTableResource& table) override {
    const tf::Tensor& clock = context->input(1);
    if (clock.NumElements() != 2) {
      return InvalidArgument(
          absl::StrCat("table '", table.name(), "': a clock of ", clock.NumElements(), " numbers, wanted 2"));
    }
    table.set_clock({clock.flat<int64_t>()(0), clock.flat<int64_t>()(1)});
    return OkStatus();
  }
};

class RemoveKernel : public TableKernelBase {
 public:
  using TableKernelBase::TableKernelBase;

 protected:
  Status Run(tf::OpKernelContext* context, DynamicTableResource& table) override {
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t removed, table.Remove(context->input(1)));
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * out, AllocateTensor(context, 0, {}));
    out->scalar<int64_t>()() = removed;
    return OkStatus();
  }
};

class DropSlotsKernel : public TableKernelBase {
 public:
  explicit DropSlotsKernel(tf::OpKernelConstruction* construction) : TableKernelBase(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("slots", &slots_));
  }

 protected:
  Status Run(tf::OpKernelContext*, DynamicTableResource& table) override {
    for (const std::string& slot : slots_) table.table().DropSlot(slot);
    return OkStatus();
  }

 private:
  std::vector<std::string> slots_;
};

// TensorFlow asks a handle for the shape and type of its values. This one has the shape of no rows. If TensorFlow makes
// zeros for a missing gradient, as for the branch of a tf.cond without a lookup, these have no rows either.
absl::Status HandleShape(InferenceContext* c) {
  int64_t dim = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
  c->set_output(0, c->Scalar());
  c->set_output_handle_shapes_and_types(0, {{c->Matrix(0, dim), tf::DT_FLOAT}});
  return absl::OkStatus();
}

REGISTER_KERNEL_BUILDER(Name("LockstepDynamicTable").Device(tf::DEVICE_CPU),
                        tf::ResourceHandleOp<DynamicTableResource>);
REGISTER_KERNEL_BUILDER(Name("LockstepDynamicTableIsReady").Device(tf::DEVICE_CPU),
                        tf::IsResourceInitialized<DynamicTableResource>);
REGISTER_KERNEL_BUILDER(Name("LockstepDynamicTableCreate").Device(tf::DEVICE_CPU), CreateKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepDynamicTableEndStep").Device(tf::DEVICE_CPU), EndStepKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepDynamicTableClock").Device(tf::DEVICE_CPU), ClockKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepDynamicTableSetClock").Device(tf::DEVICE_CPU), SetClockKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepDynamicTableRemove").Device(tf::DEVICE_CPU), RemoveKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepDynamicTableDropSlots").Device(tf::DEVICE_CPU), DropSlotsKernel);

REGISTER_OP("LockstepDynamicTable")
    .Output("resource: resource")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .Attr("dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn(HandleShape)
    .Doc(R"doc(
Returns the handle of a dynamic table, whose rows have `dim` floats.
)doc");

REGISTER_OP("LockstepDynamicTableIsReady")
    .Input("table: resource")
    .Output("ready: bool")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc(R"doc(
Returns whether the table has been made.
)doc");

REGISTER_OP("LockstepDynamicTableCreate")
    .Input("table: resource")
    .Input("initial_rows: float")
    .Attr("table_name: string")
    .Attr("string_keys: bool = false")
    .Attr("key_owner: int = -2")
    .Attr("dim: int >= 1")
    .Attr("row_type: {float, half, bfloat16} = DT_FLOAT")
    .Attr("initial: {'constant', 'uniform', 'normal', 'truncated_normal', 'rows'}")
    .Attr("initial_a: float = 0.0")
    .Attr("initial_b: float = 0.0")
    .Attr("seed: int = 0")
    .Attr("default_value: float = 0.0")
    .Attr("min_frequency: int = 0")
    .Attr("bloom_keys: list(int) = []")
    .Attr("bloom_false_positives: list(float) = []")
    .Attr("steps_to_live: list(int) = []")
    .Attr("seconds_to_live: list(int) = []")
    .Attr("l2_threshold: list(float) = []")
    .Attr("max_keys: list(int) = []")
    .Attr("max_bytes: list(int) = []")
    .Attr("order: {'lru', 'lfu'} = 'lru'")
    .Attr("keys_per_call: int >= 1 = 4096")
    .Attr("record_frequency: bool = false")
    .Attr("record_version: bool = false")
    .Attr("record_seconds: bool = false")
    .Attr("track_changes: bool = false")
    .Attr("expected_keys: int >= 0 = 0")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(R"doc(
Makes an empty table, which replaces an existing one. The attributes are the fields of DynamicTableOptions
(core/embedding/dynamic_table.h) and its parts; a list of one is a value, an empty list is none.

key_owner: the placement of the keys, as for LockstepRoute.
initial_rows: [K, D] for initial = 'rows', by which a key begins with row `key mod K`; not used otherwise.
)doc");

REGISTER_OP("LockstepDynamicTableEndStep")
    .Input("table: resource")
    .Input("step: int64")
    .Attr("once_in_a_run: bool = false")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(R"doc(
Ends a step, after all rows resolved in it have been updated: evicts by the table's options.

step: the step in which the next lookups are counted; a negative value means the next step.
once_in_a_run: if a run of a graph has several of these, only the first has an effect.
)doc");

REGISTER_OP("LockstepDynamicTableClock")
    .Input("table: resource")
    .Output("clock: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(2));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns the step in which lookups are counted, and the number of changes of rows.
)doc");

REGISTER_OP("LockstepDynamicTableSetClock")
    .Input("table: resource")
    .Input("clock: int64")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(R"doc(
Sets the numbers that LockstepDynamicTableClock returns.
)doc");

REGISTER_OP("LockstepDynamicTableRemove")
    .Input("table: resource")
    .Input("keys: Tkeys")
    .Output("removed: int64")
    .Attr("Tkeys: {int32, int64, string}")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc(R"doc(
Removes keys; returns how many of them existed.
)doc");

REGISTER_OP("LockstepDynamicTableDropSlots")
    .Input("table: resource")
    .Attr("slots: list(string)")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(R"doc(
Drops slots; missing ones are ignored. Later slots take their memory.
)doc");

}  // namespace
}  // namespace lockstep
