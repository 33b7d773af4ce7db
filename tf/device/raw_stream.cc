#include "tf/device/raw_stream.h"

#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/core/framework/device_base.h"
#include "xla/stream_executor/stream.h"
#include "xla/stream_executor/stream_executor.h"

namespace lockstep {

namespace tf = ::tensorflow;

namespace {

// Executors of plug-ins do not know their number. TensorFlow's description of the device begins with it: "device: 1,
// name: ...".
Result<int> NumberOf(tf::OpKernelContext* context) {
  const int known = context->op_device_context()->stream()->parent()->device_ordinal();
  if (known >= 0) return known;
  const auto& description = context->device()->attributes().physical_device_desc();
  absl::string_view rest = description;
  int number = -1;
  if (absl::ConsumePrefix(&rest, "device: ") && absl::SimpleAtoi(rest.substr(0, rest.find(',')), &number))
    return number;
  return Internal(
      absl::StrCat(context->device()->name(), ": wanted 'device: N, ...' as its description, got '", description, "'"));
}

}  // namespace

// TensorFlow's way to CUDA's stream is Eigen's device, which needs CUDA's headers. Streams of plug-ins have no handle
// of a platform; TensorFlow's C interface for kernels knows them. Its context is the C++ one under another name.
Result<RawDevice> RawDeviceOf(tf::OpKernelContext* context) {
  const auto* const device = context->op_device_context();
  if (device == nullptr || device->stream() == nullptr) {
    return Internal(absl::StrCat("'", context->op_kernel().name(), "' runs on ", context->device()->name(),
                                 ", which has no stream"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const int number, NumberOf(context));
  if (void* const handle = device->stream()->platform_specific_handle().stream) {
    return RawDevice{number, static_cast<device::Stream>(handle)};
  }
  const std::unique_ptr<TF_Status, decltype(&TF_DeleteStatus)> status(TF_NewStatus(), TF_DeleteStatus);
  SP_Stream const stream = TF_GetStream(reinterpret_cast<TF_OpKernelContext*>(context), status.get());
  if (TF_GetCode(status.get()) == TF_OK && stream != nullptr) {
    return RawDevice{number, reinterpret_cast<device::Stream>(stream)};
  }
  return Internal(absl::StrCat("'", context->op_kernel().name(), "': ", context->device()->name(),
                               " gives no stream: ", TF_Message(status.get())));
}

}  // namespace lockstep
