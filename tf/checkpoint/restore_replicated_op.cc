// Restores variables that every worker holds whole from an incremental checkpoint. restore_shards_op.cc restores those
// that are divided among the workers.
//
// The number of workers decides whether a small table is divided, and it may have been another one when the increment
// was saved. So an increment has a variable of this job either whole, or as the rows that have changed (saved_table.h).
// Changed rows replace rows of the present value, which came from the checkpoint before.
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "tf/bridge/convert.h"
#include "tf/checkpoint/bundle_rows.h"
#include "tf/checkpoint/rows_reader.h"
#include "tf/checkpoint/saved_table.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// Reads the rows from `first` on of a tensor of `total` rows into `rows`, [R, ...].
Status ReadRows(tf::BundleReader* file, const std::string& prefix, const std::string& name, int64_t total,
                int64_t first, tf::Tensor* rows) {
  const int64_t count = rows->dim_size(0);
  tf::TensorShape shape = rows->shape();
  shape.set_dim(0, total);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<RowsReader> reader,
                            RowsReader::Open(file, prefix, name, rows->dtype(), shape, {first, first + count}));
  if (rows->NumElements() == 0) return OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(reader->Read(count, static_cast<char*>(Data(*rows))));
  return reader->Finish();
}

// Writes the changed rows of a table of `total` rows into `rows`, which are those from `first` on.
Status ReadChanges(tf::BundleReader* file, const std::string& prefix, const std::string& name, int64_t total,
                   int64_t first, tf::Tensor* rows) {
  const std::string ids_name = ChangedIds(name);
  tf::DataType type;
  tf::TensorShape stored;
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(file->LookupDtypeAndShape(ids_name, &type, &stored)));
  if (stored.dims() != 1 || type != tf::DT_INT64) {
    return InvalidArgument(absl::StrCat("tensor '", ids_name, "' is ", tf::DataTypeString(type), stored.DebugString(),
                                        " in the checkpoint, wanted a list of ids"));
  }
  const int64_t changed = stored.dim_size(0);
  LOCKSTEP_RETURN_IF_ERROR(CheckChanges(ids_name, changed, total));
  tf::TensorShape shape = rows->shape();
  shape.set_dim(0, changed);
  tf::Tensor ids(tf::DT_INT64, {changed}), values(rows->dtype(), shape);
  LOCKSTEP_RETURN_IF_ERROR(CheckAllocated(ids));
  LOCKSTEP_RETURN_IF_ERROR(CheckAllocated(values));
  LOCKSTEP_RETURN_IF_ERROR(ReadRows(file, prefix, ids_name, changed, 0, &ids));
  LOCKSTEP_RETURN_IF_ERROR(ReadRows(file, prefix, ChangedValues(name), changed, 0, &values));
  if (values.NumElements() == 0) return OkStatus();
  const int64_t row_bytes = static_cast<int64_t>(values.TotalBytes()) / changed;
  const auto* from = static_cast<const char*>(Data(values));
  for (int64_t i = 0; i < changed; ++i, from += row_bytes) {
    const int64_t id = ids.flat<int64_t>()(i);
    if (id < 0 || id >= total) {
      return DataLoss(absl::StrCat("an increment has the id ", id, ", wanted one in [0, ", total, ")"));
    }
    if (id < first || id >= first + rows->dim_size(0)) continue;
    std::memcpy(static_cast<char*>(Data(*rows)) + (id - first) * row_bytes, from, row_bytes);
  }
  return OkStatus();
}

// Input 0 is the checkpoint's prefix; the others are the variables' values.
class RestoreReplicatedKernel : public tf::OpKernel {
 public:
  explicit RestoreReplicatedKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("names", &names_));
    OP_REQUIRES_OK(construction, construction->GetAttr("totals", &totals_));
    OP_REQUIRES_OK(construction, construction->GetAttr("firsts", &firsts_));
    OP_REQUIRES(construction,
                construction->num_inputs() == static_cast<int>(names_.size()) + 1 && totals_.size() == names_.size() &&
                    firsts_.size() == names_.size(),
                absl::InvalidArgumentError("the lists of arguments have different lengths"));
  }

  void Compute(tf::OpKernelContext* context) override {
    const std::string prefix(context->input(0).scalar<tf::tstring>()());
    const Status status = Damage(Run(context, prefix)).WithPrefix(absl::StrCat("checkpoint ", prefix, ": "));
    OP_REQUIRES_OK(context, ToTensorFlow(status));
  }

 private:
  Status Run(tf::OpKernelContext* context, const std::string& prefix) const {
    tf::BundleReader file(tf::Env::Default(), prefix);
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(file.status()));
    for (size_t i = 0; i < names_.size(); ++i) {
      const Status status = Restore(context, prefix, &file, i);
      LOCKSTEP_RETURN_IF_ERROR(status.WithPrefix(absl::StrCat("variable '", names_[i], "': ")));
    }
    return OkStatus();
  }

  Status Restore(tf::OpKernelContext* context, const std::string& prefix, tf::BundleReader* file, size_t i) const {
    const int place = static_cast<int>(i);
    const tf::Tensor& present = context->input(place + 1);
    if (present.dims() == 0 || firsts_[i] < 0 || firsts_[i] > totals_[i] - present.dim_size(0)) {
      return InvalidArgument(absl::StrCat("its value has the shape ", present.shape().DebugString(), ", wanted rows ",
                                          firsts_[i], " and following of ", totals_[i]));
    }
    tf::Tensor* restored;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_output(place, present.shape(), &restored)));
    if (!file->Contains(ChangedIds(names_[i]))) {
      return ReadRows(file, prefix, names_[i], totals_[i], firsts_[i], restored);
    }
    std::memcpy(Data(*restored), Data(present), present.TotalBytes());
    return ReadChanges(file, prefix, names_[i], totals_[i], firsts_[i], restored);
  }

  std::vector<std::string> names_;
  std::vector<int64_t> totals_, firsts_;
};

REGISTER_KERNEL_BUILDER(Name("LockstepRestoreReplicated").Device(tf::DEVICE_CPU), RestoreReplicatedKernel);

REGISTER_OP("LockstepRestoreReplicated")
    .Input("prefix: string")
    .Input("present: dtypes")
    .Output("restored: dtypes")
    .Attr("names: list(string)")
    .Attr("totals: list(int)")
    .Attr("firsts: list(int)")
    .Attr("dtypes: list({float, double, bfloat16, int8, int16, int32, int64, uint8, uint16, uint32, uint64}) >= 1")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      for (int i = 1; i < c->num_inputs(); ++i) c->set_output(i - 1, c->input(i));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Reads variables that are equal on all workers from an incremental checkpoint.

prefix: of the checkpoint.
present: the variables' values, [R, ...]: those of the checkpoint on which it builds.
totals: for each variable, the number of rows of its tensor in the checkpoint; more than R for a part of a variable.
firsts: the first of the variable's rows.
restored: their values in the checkpoint.
)doc");

}  // namespace
}  // namespace lockstep
