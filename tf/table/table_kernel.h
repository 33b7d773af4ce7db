#pragma once

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/bridge/convert.h"
#include "tf/table/table_resource.h"

namespace lockstep {

// Base of the ops on a dynamic table of this process, whose handle is input 0. A kernel implements Run, whose error is
// the op's error. Several threads may call Run at once.
class TableKernelBase : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) final {
    auto table = TableOf(context, 0);
    OP_REQUIRES(context, table.ok(), ToTensorFlow(table.status()));
    OP_REQUIRES_OK(context, ToTensorFlow(Run(context, **table)));
  }

 protected:
  virtual Status Run(tensorflow::OpKernelContext* context, DynamicTableResource& table) = 0;

  // Returns output `index`, a row of floats for each element of `shape`.
  static Result<float*> AllocateRows(tensorflow::OpKernelContext* context, int index, tensorflow::TensorShape shape,
                                     int64_t dim) {
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(shape.AddDimWithStatus(dim)));
    LOCKSTEP_ASSIGN_OR_RETURN(tensorflow::Tensor * rows, AllocateTensor(context, index, shape));
    return static_cast<float*>(Data(*rows));
  }
};

// Sets the shape of output `index` to rows of the table of input 0: `shape` and then D, which the handle knows.
inline absl::Status SetRowsShape(tensorflow::shape_inference::InferenceContext* c, int index,
                                 tensorflow::shape_inference::ShapeHandle shape) {
  tensorflow::shape_inference::DimensionHandle dim = c->UnknownDim();
  const auto* handle = c->input_handle_shapes_and_types(0);
  if (handle != nullptr && !handle->empty() && c->RankKnown((*handle)[0].shape)) dim = c->Dim((*handle)[0].shape, -1);
  tensorflow::shape_inference::ShapeHandle rows;
  TF_RETURN_IF_ERROR(c->Concatenate(shape, c->Vector(dim), &rows));
  c->set_output(index, rows);
  return absl::OkStatus();
}

}  // namespace lockstep
