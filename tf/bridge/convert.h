#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

// The only conversions between the core's types and TensorFlow's. Everything else in tf/ is an op that checks,
// allocates and calls the core; so a change of either side's types is a change of this folder. All functions may be
// called from any thread.
namespace lockstep {

// The element types that collectives compute with, for op definitions ("T: {...}") and kernels. ToDType takes exactly
// these.
#define LOCKSTEP_DTYPES \
  "{float, double, half, bfloat16, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool}"

// The same code and message, both ways, with two exceptions. To TensorFlow, UNAVAILABLE and ABORTED become INTERNAL:
// sessions would start over, for ever. From TensorFlow, codes that the core does not have become INTERNAL. So a status
// that goes through both may come back with another code.
//
// Trap: OUT_OF_RANGE is how TensorFlow says that data has ended, and a session takes it for a good end. Only an end of
// data may be given this code; an id or an option out of range is INVALID_ARGUMENT.
absl::Status ToTensorFlow(const Status& status);
Status FromTensorFlow(const absl::Status& status);

// INVALID_ARGUMENT for a type that the core does not compute with, such as string.
Result<DType> ToDType(tensorflow::DataType dtype);

// A tensor that shows `shape` elements from `offset_bytes` of `memory` on, without a copy. `memory` lives as long as a
// tensor shows it, on whatever thread the last one goes. It reports memory that it does not own, so that no kernel
// writes its result over it. The address must be a multiple of EIGEN_MAX_ALIGN_BYTES, as that of every tensor; the
// range must lie inside of `memory`, and nothing may be written there any more.
tensorflow::Tensor ViewOf(const std::shared_ptr<SharedBuffer>& memory, int64_t offset_bytes, tensorflow::DataType dtype,
                          const tensorflow::TensorShape& shape);

// An Allocate that makes output `index` of the kernel: one row of `row_shape` for each item that comes in,
// [sum(counts)] + row_shape. RESOURCE_EXHAUSTED where TensorFlow has no memory. `context` outlives the collective, as
// that of every asynchronous kernel does until it is done.
Allocate AllocateOutput(tensorflow::OpKernelContext* context, int index, const tensorflow::TensorShape& row_shape);

// The address of the first element, null for an empty tensor. The caller may write where it owns the buffer: into an
// output that it has allocated, and never into an input.
void* Data(const tensorflow::Tensor& tensor);

}  // namespace lockstep
