#pragma once

#include "core/base/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/tensor.h"

// Kernels of GPUs that work in the host's memory.
//
// Programs place operations on GPUs, also those that have no code for them: TensorFlow puts a variable, and all nodes
// that use it, on one device. An operation without a kernel for this device is an error, or moves the whole group to
// the CPU without a word. Therefore every kernel of the CPU is also one of the GPU, with all its inputs and outputs in
// the host's memory; TensorFlow copies them. The kernel sees no difference, if it keeps two rules:
// - It takes temporary tensors from AllocateTemporary.
// - It reads a variable only after CheckOnHost.
namespace lockstep {

// Registers the CPU's kernels of the operations "Lockstep..." for GPUs, except for operations that have a kernel for
// GPUs. Python calls it when the library has been loaded, because TensorFlow does not know the operations earlier;
// whether there is a GPU or not, because a plug-in may add one. It takes less than a millisecond.
#pragma GCC visibility push(default)
extern "C" void lockstep_register_kernels_for_gpus();
#pragma GCC visibility pop

// Returns a temporary tensor in the host's memory. TensorFlow's allocate_temp takes a GPU's, in a kernel of a GPU.
// RESOURCE_EXHAUSTED without memory.
Result<tensorflow::Tensor> AllocateTemporary(tensorflow::OpKernelContext* context, tensorflow::DataType dtype,
                                             const tensorflow::TensorShape& shape);

// FAILED_PRECONDITION unless a variable is on the CPU. A handle is always in the host's memory, but the variable's
// value is in the memory of its device.
Status CheckOnHost(const tensorflow::ResourceHandle& variable);

}  // namespace lockstep
