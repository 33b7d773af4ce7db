#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

// The only conversions between the core's types and TensorFlow's. All other code in tf/ is ops that check, allocate and
// call the core. So a change of types on either side changes only this folder. Any thread may call any function.
namespace lockstep {

// The element types that collectives compute with, for op definitions ("T: {...}") and kernels. ToDType accepts exactly
// these.
#define LOCKSTEP_DTYPES \
  "{float, double, half, bfloat16, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool}"

// Convert a status with the same code and message, with two exceptions. To TensorFlow, UNAVAILABLE and ABORTED become
// INTERNAL, because sessions would start over for ever. From TensorFlow, codes that the core does not have become
// INTERNAL. So a status that goes through both may come back with another code.
//
// Trap: OUT_OF_RANGE is TensorFlow's signal for the end of data, and a session takes it for a normal end. Only an end
// of data may have this code; an id or an option out of range is INVALID_ARGUMENT.
absl::Status ToTensorFlow(const Status& status);
Status FromTensorFlow(const absl::Status& status);

// INVALID_ARGUMENT for a type that the core does not compute with, such as string.
Result<DType> ToDType(tensorflow::DataType dtype);

// Returns a tensor that shows `shape` elements of `memory` from `offset_bytes` on, without a copy. `memory` lives as
// long as such a tensor; any thread may release the last one. The buffer reports that it does not own its memory, so no
// kernel writes its result over it. The address must be a multiple of EIGEN_MAX_ALIGN_BYTES, as for every tensor. The
// range must lie inside `memory`, and nothing may be written there any more.
tensorflow::Tensor ViewOf(const std::shared_ptr<SharedBuffer>& memory, int64_t offset_bytes, tensorflow::DataType dtype,
                          const tensorflow::TensorShape& shape);

// Returns an Allocate that makes output `index` of the kernel: one row of `row_shape` for each item that comes in,
// [sum(counts)] + row_shape. RESOURCE_EXHAUSTED if TensorFlow has no memory. `context` outlives the collective, because
// an asynchronous kernel's context lives until the kernel is done.
Allocate AllocateOutput(tensorflow::OpKernelContext* context, int index, const tensorflow::TensorShape& row_shape);

// Returns output `index` of the kernel, owned by the context. RESOURCE_EXHAUSTED without memory.
Result<tensorflow::Tensor*> AllocateTensor(tensorflow::OpKernelContext* context, int index,
                                           const tensorflow::TensorShape& shape);

// Returns the address of the first element, or null for an empty tensor. The caller may write only if it owns the
// buffer: into an output that it has allocated, and never into an input.
void* Data(const tensorflow::Tensor& tensor);

// Returns all elements of a tensor of type T.
template <typename T>
std::span<const T> AsSpan(const tensorflow::Tensor& tensor) {
  return {static_cast<const T*>(Data(tensor)), static_cast<size_t>(tensor.NumElements())};
}

}  // namespace lockstep
