// Lookups in a dynamic table of this process, and access to rows by their numbers:
//
//   tensor     shape            dtype                  is
//   keys       [...], N in all  int64, int32, string   the keys to look up
//   rows       keys + [D]       float                  for any type of the table's rows
//   numbers    [N]              int64                  row numbers; -1 for keys that are not admitted
//   values     [N, D]           float                  of rows or slots
//
// The gradient of rows, together with `numbers`, is the table's tf.IndexedSlices (registered in Python).
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/capi/capi.h"
#include "core/telemetry/clock.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/bridge/convert.h"
#include "tf/bridge/parallel.h"
#include "tf/lookup/lookup_counts.h"
#include "tf/lookup/shard_rows.h"
#include "tf/table/table_kernel.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;
using tf::shape_inference::InferenceContext;

// A lookup of keys. It is counted here, unless an operation before it has dropped duplicates and has counted it.
class KeysKernelBase : public TableKernelBase {
 public:
  explicit KeysKernelBase(tf::OpKernelConstruction* construction) : TableKernelBase(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("is_counted", &is_counted_));
  }

 protected:
  void CountOnce(TableCounters& counters, const tf::Tensor& keys) const {
    if (is_counted_) return;
    counters.AddLookup(keys.NumElements());
    counters.AddServed(keys.NumElements());
  }

 private:
  bool is_counted_ = false;
};

class ResolveKernel : public KeysKernelBase {
 public:
  using KeysKernelBase::KeysKernelBase;

 protected:
  Status Run(tf::OpKernelContext* context, DynamicTableResource& table) override {
    const tf::Tensor& keys = context->input(1);
    LOCKSTEP_ASSIGN_OR_RETURN(float* rows, AllocateRows(context, 0, keys.shape(), table.dim()));
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * numbers, AllocateTensor(context, 1, {keys.NumElements()}));
    const int64_t begin_ns = SteadyNs();
    const int64_t before = table.table().total_count();
    LOCKSTEP_RETURN_IF_ERROR(
        table.Resolve(keys, context->input(2), rows, static_cast<int64_t*>(Data(*numbers)), ParallelForOf(context)));
    // Exact as long as lookups of the same table do not run at the same time.
    const int64_t after = table.table().total_count();
    CountKeys(table.counters(), keys.NumElements(), std::max<int64_t>(0, after - before), begin_ns);
    table.counters().SetSize(after, table.table().bytes());
    CountOnce(table.counters(), keys);
    return OkStatus();
  }
};

class LookupKernel : public KeysKernelBase {
 public:
  using KeysKernelBase::KeysKernelBase;

 protected:
  Status Run(tf::OpKernelContext* context, DynamicTableResource& table) override {
    const tf::Tensor& keys = context->input(1);
    LOCKSTEP_ASSIGN_OR_RETURN(float* rows, AllocateRows(context, 0, keys.shape(), table.dim()));
    LOCKSTEP_RETURN_IF_ERROR(table.Lookup(keys, rows, ParallelForOf(context)));
    CountOnce(table.counters(), keys);
    return OkStatus();
  }
};

class FindKernel : public TableKernelBase {
 public:
  using TableKernelBase::TableKernelBase;

 protected:
  Status Run(tf::OpKernelContext* context, DynamicTableResource& table) override {
    const tf::Tensor& keys = context->input(1);
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * numbers, AllocateTensor(context, 0, keys.shape()));
    return table.Find(keys, static_cast<int64_t*>(Data(*numbers)), ParallelForOf(context));
  }
};

// Returns the number of a slot by its name; nothing for the empty name, which stands for the weights.
Result<std::optional<int>> SlotNumber(DynamicTable& table, const std::string& name, const tf::Tensor& initial) {
  if (name.empty()) return std::optional<int>();
  LOCKSTEP_ASSIGN_OR_RETURN(const int number, table.AddSlot(name, initial.scalar<float>()()));
  return std::optional<int>(number);
}

class ReadRowsKernel : public TableKernelBase {
 public:
  explicit ReadRowsKernel(tf::OpKernelConstruction* construction) : TableKernelBase(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("slot", &slot_));
  }

 protected:
  Status Run(tf::OpKernelContext* context, DynamicTableResource& table) override {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<int> slot, SlotNumber(table.table(), slot_, context->input(2)));
    LOCKSTEP_ASSIGN_OR_RETURN(const auto numbers, DynamicTableResource::Numbers(context->input(1)));
    LOCKSTEP_ASSIGN_OR_RETURN(float* values, AllocateRows(context, 0, context->input(1).shape(), table.dim()));
    return table.table().ReadRows(numbers, slot, values, ParallelForOf(context));
  }

 private:
  std::string slot_;
};

class WriteRowsKernel : public TableKernelBase {
 public:
  explicit WriteRowsKernel(tf::OpKernelConstruction* construction) : TableKernelBase(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("slot", &slot_));
  }

 protected:
  Status Run(tf::OpKernelContext* context, DynamicTableResource& table) override {
    const tf::Tensor& values = context->input(2);
    LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<int> slot, SlotNumber(table.table(), slot_, context->input(3)));
    LOCKSTEP_ASSIGN_OR_RETURN(const auto numbers, DynamicTableResource::Numbers(context->input(1)));
    const auto count = static_cast<int64_t>(numbers.size());
    if (values.shape() != tf::TensorShape({count, table.dim()})) {
      return InvalidArgument(absl::StrCat("table '", table.name(), "': got values of shape ",
                                          values.shape().DebugString(), ", wanted [", count, ",", table.dim(), "]"));
    }
    return table.table().WriteRows(numbers, slot, static_cast<const float*>(Data(values)), table.NextRounding(),
                                   ParallelForOf(context));
  }

 private:
  std::string slot_;
};

absl::Status ResolveShapes(InferenceContext* c) {
  TF_RETURN_IF_ERROR(SetRowsShape(c, 0, c->input(1)));
  c->set_output(1, c->Vector(c->NumElements(c->input(1))));
  return absl::OkStatus();
}

absl::Status RowsOfKeys(InferenceContext* c) { return SetRowsShape(c, 0, c->input(1)); }

REGISTER_KERNEL_BUILDER(Name("LockstepDynamicTableResolve").Device(tf::DEVICE_CPU), ResolveKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepDynamicTableLookup").Device(tf::DEVICE_CPU), LookupKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepDynamicTableFind").Device(tf::DEVICE_CPU), FindKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepDynamicTableReadRows").Device(tf::DEVICE_CPU), ReadRowsKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepDynamicTableWriteRows").Device(tf::DEVICE_CPU), WriteRowsKernel);

REGISTER_OP("LockstepDynamicTableResolve")
    .Input("table: resource")
    .Input("keys: Tkeys")
    .Input("times: int64")
    .Output("rows: float")
    .Output("numbers: int64")
    .Attr("Tkeys: {int32, int64, string}")
    .Attr("is_counted: bool = false")
    .Attr("gradients_by: {'number', 'key'} = 'number'")
    .SetIsStateful()
    .Attr(LOCKSTEP_SHARD_ROWS_ATTR ": bool = true")
    .SetShapeFn(ResolveShapes)
    .Doc(R"doc(
Looks up keys in training: counts keys, inserts those that are admitted, and reads their rows.

keys: any shape.
times: [N], how often each key is seen; or empty: once.
rows: the shape of the keys, then D.
numbers: [N]; the number of each key's row, -1 for keys that are not admitted.
is_counted: whether the lookup is in the table's counters already.
gradients_by: the indices of the gradient's slices: numbers of rows, or keys, which must be integers then.
)doc");

REGISTER_OP("LockstepDynamicTableLookup")
    .Input("table: resource")
    .Input("keys: Tkeys")
    .Output("rows: float")
    .Attr("Tkeys: {int32, int64, string}")
    .Attr("is_counted: bool = false")
    .SetIsStateful()
    .SetShapeFn(RowsOfKeys)
    .Doc(R"doc(
Looks up keys in evaluation, without changing the table. Keys without a row read the table's default_value.
)doc");

REGISTER_OP("LockstepDynamicTableFind")
    .Input("table: resource")
    .Input("keys: Tkeys")
    .Output("numbers: int64")
    .Attr("Tkeys: {int32, int64, string}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns the numbers of the rows of keys, -1 for keys without a row; changes nothing.
)doc");

REGISTER_OP("LockstepDynamicTableReadRows")
    .Input("table: resource")
    .Input("numbers: int64")
    .Input("slot_initial: float")
    .Output("values: float")
    .Attr("slot: string = ''")
    .SetIsStateful()
    .SetShapeFn(RowsOfKeys)
    .Doc(R"doc(
Reads weights, or a slot, of rows by their numbers. A missing slot is made, with the value `slot_initial`.
)doc");

REGISTER_OP("LockstepDynamicTableWriteRows")
    .Input("table: resource")
    .Input("numbers: int64")
    .Input("values: float")
    .Input("slot_initial: float")
    .Attr("slot: string = ''")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(R"doc(
Sets weights, or a slot, of rows by their numbers, which are distinct. Values for number -1 are dropped.
)doc");

}  // namespace
}  // namespace lockstep
