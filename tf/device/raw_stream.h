#pragma once

#include "core/base/status.h"
#include "core/device/library.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace lockstep {

// Returns the stream into which a kernel of a GPU puts its work: CUDA's, or the one of a plug-in for devices. It lives
// as long as the device. INTERNAL if the kernel's device has none, as a CPU has.
Result<device::Stream> RawStream(tensorflow::OpKernelContext* context);

}  // namespace lockstep
