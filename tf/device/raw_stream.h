#pragma once

#include "core/base/status.h"
#include "core/device/library.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace lockstep {

// The GPU of a kernel, as CUDA or a plug-in for devices knows it.
struct RawDevice {
  int number;
  device::Stream stream;  // into which the kernel puts its work; it lives as long as the device
};

// Returns a kernel's GPU. INTERNAL if the kernel's device has no stream, as a CPU has none.
Result<RawDevice> RawDeviceOf(tensorflow::OpKernelContext* context);

}  // namespace lockstep
