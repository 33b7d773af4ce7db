// Reads rows of a variable: the middle of a lookup (lookup_ops.cc), and what TensorFlow's ResourceGather is for other
// variables.
//
// ResourceGather first wants the variable to be the only owner of its memory, since it puts it into "copy on read"
// mode. While a checkpoint is saved, the memory has another owner (variable_snapshot.h), and so the first lookup would
// copy the whole table. Reading needs none of this: it copies rows while it holds the variable's mutex.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/prefetch.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tf/bridge/convert.h"
#include "tf/bridge/host_memory.h"
#include "tf/bridge/parallel.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

// Rows lie anywhere in memory. So many rows ahead are fetched into the cache.
constexpr int64_t kAhead = 8;
constexpr int64_t kMostFetchedBytes = 512;
// The bytes for which another thread is worth its start.
constexpr int64_t kGrainBytes = int64_t{64} << 10;

template <typename Index>
class ReadRowsKernel : public tf::OpKernel {
 public:
  explicit ReadRowsKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("dtype", &dtype_));
    OP_REQUIRES(
        construction, tf::DataTypeCanUseMemcpy(dtype_),
        absl::InvalidArgumentError(absl::StrCat("'", construction->def().name(), "': rows are ",
                                                tf::DataTypeString(dtype_), ", wanted elements of fixed size")));
  }

  void Compute(tf::OpKernelContext* context) override {
    context->SetStatus(ToTensorFlow(Read(context).WithPrefix(absl::StrCat("'", name(), "': "))));
  }

 private:
  Status Read(tf::OpKernelContext* context) const {
    const tf::ResourceHandle& handle = tf::HandleFromInput(context, 0);
    tf::core::RefCountPtr<tf::Var> variable;
    if (!tf::LookupResource(context, handle, &variable).ok()) return NotInitialized(handle);
    LOCKSTEP_RETURN_IF_ERROR(CheckOnHost(handle));
    const tf::tf_shared_lock lock(*variable->mu());
    const tf::Tensor& table = *variable->tensor();
    if (!variable->is_initialized || !table.IsInitialized()) return NotInitialized(handle);
    if (table.dtype() != dtype_ || table.dims() == 0) {
      return InvalidArgument(absl::StrCat("variable '", handle.name(), "' is ", tf::DataTypeString(table.dtype()),
                                          table.shape().DebugString(), ", wanted rows of ",
                                          tf::DataTypeString(dtype_)));
    }
    const tf::Tensor& indices = context->input(1);
    tf::TensorShape shape = indices.shape(), row = table.shape();
    row.RemoveDim(0);
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(shape.AppendShapeWithStatus(row)));
    tf::Tensor* rows = nullptr;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_output(0, shape, &rows)));
    const int64_t row_bytes = row.num_elements() * tf::DataTypeSize(dtype_);
    return Copy(handle, indices, table, row_bytes, ParallelForOf(context), static_cast<char*>(Data(*rows)));
  }

  static Status Copy(const tf::ResourceHandle& handle, const tf::Tensor& indices, const tf::Tensor& table,
                     int64_t row_bytes, const ParallelFor& parallel, char* to) {
    const auto* const numbers = static_cast<const Index*>(Data(indices));
    const auto* const from = static_cast<const char*>(Data(table));
    const auto count = static_cast<uint64_t>(table.dim_size(0));
    const int64_t fetched = std::min(row_bytes, kMostFetchedBytes);
    const auto is_row = [=](int64_t i) { return static_cast<uint64_t>(int64_t{numbers[i]}) < count; };
    std::atomic<bool> all_in_range = true;
    const int64_t grain = std::max<int64_t>(1, kGrainBytes / std::max<int64_t>(1, row_bytes));
    parallel(indices.NumElements(), grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t next = i + kAhead;
        if (next < end && is_row(next)) PrefetchForRead(from + numbers[next] * row_bytes, fetched);
        if (!is_row(i)) {
          all_in_range.store(false, std::memory_order_relaxed);
          return;
        }
        if (row_bytes > 0) std::memcpy(to + i * row_bytes, from + numbers[i] * row_bytes, row_bytes);
      }
    });
    if (all_in_range) return OkStatus();
    int64_t wrong = 0;
    while (is_row(wrong)) ++wrong;
    return InvalidArgument(absl::StrCat("indices[", wrong, "] is ", numbers[wrong], ", wanted a row of variable '",
                                        handle.name(), "', in [0, ", count, ")"));
  }

  static Status NotInitialized(const tf::ResourceHandle& handle) {
    return FailedPrecondition(absl::StrCat("variable '", handle.name(), "' is not initialized"));
  }

  tf::DataType dtype_;
};

absl::Status RowsShape(InferenceContext* c) {
  ShapeHandle variable = c->UnknownShape(), row, out;
  tf::DataType dtype;
  TF_RETURN_IF_ERROR(c->GetAttr("dtype", &dtype));
  const auto* const handle = c->input_handle_shapes_and_types(0);
  if (handle != nullptr && handle->size() == 1) {
    if ((*handle)[0].dtype != dtype) {
      return absl::InvalidArgumentError(absl::StrCat("the variable is ", tf::DataTypeString((*handle)[0].dtype),
                                                     ", wanted ", tf::DataTypeString(dtype)));
    }
    variable = (*handle)[0].shape;
  }
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(variable, 1, &variable));
  TF_RETURN_IF_ERROR(c->Subshape(variable, 1, &row));
  TF_RETURN_IF_ERROR(c->Concatenate(c->input(1), row, &out));
  c->set_output(0, out);
  return absl::OkStatus();
}

REGISTER_KERNEL_BUILDER(Name("LockstepReadRows").Device(tf::DEVICE_CPU).TypeConstraint<int32_t>("Tindices"),
                        ReadRowsKernel<int32_t>);
REGISTER_KERNEL_BUILDER(Name("LockstepReadRows").Device(tf::DEVICE_CPU).TypeConstraint<int64_t>("Tindices"),
                        ReadRowsKernel<int64_t>);

REGISTER_OP("LockstepReadRows")
    .Input("resource: resource")
    .Input("indices: Tindices")
    .Output("rows: dtype")
    .Attr("dtype: type")
    .Attr("Tindices: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn(RowsShape)
    .Doc(R"doc(
Reads rows of a variable, as ResourceGather does, also beside a save without a copy of the variable.

resource: the variable, [L, ...], of a type that is plain memory.
indices: row numbers in [0, L), else InvalidArgument.
rows: the shape of indices, then that of a row.
)doc");

}  // namespace
}  // namespace lockstep
