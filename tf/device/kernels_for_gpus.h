#pragma once

#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"

namespace lockstep {

// A kernel for GPUs with code for devices, which lockstep_register_kernels_for_gpus registers. Objects of this class
// are static.
class KernelForGpus {
 public:
  using Create = tensorflow::OpKernel* (*)(tensorflow::OpKernelConstruction*);
  // on_host: the arguments whose values are in the host's memory.
  KernelForGpus(const char* op, std::vector<std::string> on_host, Create create);
};

// Gives operation `name` the kernel `Kernel` on GPUs. The strings after it are the arguments whose values are in the
// host's memory.
#define LOCKSTEP_DEVICE_KERNEL(name, Kernel, ...)                                                            \
  static const ::lockstep::KernelForGpus registered_##Kernel(                                                \
      name, {__VA_ARGS__}, [](::tensorflow::OpKernelConstruction* construction) -> ::tensorflow::OpKernel* { \
        return new Kernel(construction);                                                                     \
      })

// Registers a kernel for GPUs of each operation "Lockstep...". It is one with code for devices, if the operation has it
// and the library for GPUs can be loaded and there is a driver for it. Else it is the CPU's kernel with its arguments
// in the host's memory (bridge/host_memory.h).
//
// Python calls it once, when the library has been loaded, because TensorFlow does not know the operations earlier;
// whether there is a GPU or not, because a plug-in may add one. Without a GPU it takes less than a millisecond.
#pragma GCC visibility push(default)
extern "C" void lockstep_register_kernels_for_gpus();
#pragma GCC visibility pop

}  // namespace lockstep
