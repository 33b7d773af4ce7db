#include "tf/device/raw_stream.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/core/framework/device_base.h"
#include "xla/stream_executor/stream.h"

namespace lockstep {

namespace tf = ::tensorflow;

// TensorFlow's way to CUDA's stream is Eigen's device, which needs CUDA's headers. Streams of plug-ins have no handle
// of a platform; TensorFlow's C interface for kernels knows them. Its context is the C++ one under another name.
Result<device::Stream> RawStream(tf::OpKernelContext* context) {
  const auto* const device = context->op_device_context();
  if (device == nullptr || device->stream() == nullptr) {
    return Internal(absl::StrCat("'", context->op_kernel().name(), "' runs on ", context->device()->name(),
                                 ", which has no stream"));
  }
  if (void* const handle = device->stream()->platform_specific_handle().stream) {
    return static_cast<device::Stream>(handle);
  }
  const std::unique_ptr<TF_Status, decltype(&TF_DeleteStatus)> status(TF_NewStatus(), TF_DeleteStatus);
  SP_Stream const stream = TF_GetStream(reinterpret_cast<TF_OpKernelContext*>(context), status.get());
  if (TF_GetCode(status.get()) == TF_OK && stream != nullptr) return reinterpret_cast<device::Stream>(stream);
  return Internal(absl::StrCat("'", context->op_kernel().name(), "': ", context->device()->name(),
                               " gives no stream: ", TF_Message(status.get())));
}

}  // namespace lockstep
