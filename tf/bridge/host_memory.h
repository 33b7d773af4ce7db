#pragma once

#include "core/base/status.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/tensor.h"

// Kernels of GPUs that work in the host's memory.
//
// Programs place operations on GPUs, also those that have no code for them: TensorFlow puts a variable, and all nodes
// that use it, on one device. An operation without a kernel for this device is an error, or moves the whole group to
// the CPU without a word. Therefore every kernel of the CPU, whose operation has no code for devices, is also one of
// the GPU, with all its inputs and outputs in the host's memory; TensorFlow copies them. The kernel sees no difference,
// if it keeps two rules:
// - It takes temporary tensors from AllocateTemporary.
// - It reads a variable only after CheckOnHost.
namespace lockstep {

// Registers a kernel of the CPU for GPUs as well.
void RegisterOnHost(const tensorflow::KernelDef& kernel);

// Returns a temporary tensor in the host's memory. TensorFlow's allocate_temp takes a GPU's, in a kernel of a GPU.
// RESOURCE_EXHAUSTED without memory.
Result<tensorflow::Tensor> AllocateTemporary(tensorflow::OpKernelContext* context, tensorflow::DataType dtype,
                                             const tensorflow::TensorShape& shape);

// FAILED_PRECONDITION unless a variable is on the CPU. A handle is always in the host's memory, but the variable's
// value is in the memory of its device.
Status CheckOnHost(const tensorflow::ResourceHandle& variable);

}  // namespace lockstep
