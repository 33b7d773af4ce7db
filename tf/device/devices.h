#pragma once

#include <memory>
#include <string_view>

#include "core/base/status.h"
#include "core/comm/job/lane_job.h"
#include "core/device/comm/device_communicator.h"
#include "core/device/library.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/device/raw_stream.h"

// Folder device/: what kernels of GPUs need of TensorFlow's device.
namespace lockstep {

// Where a kernel of a GPU runs.
struct DevicePlace {
  const device::Library* library;
  int device;             // its number in the library
  device::Stream stream;  // TensorFlow's stream for kernels
};

// Returns the place of a kernel's call. FAILED_PRECONDITION if the library for GPUs cannot be loaded, or if another GPU
// was the place of an earlier call. INTERNAL if TensorFlow's device has no stream.
Result<DevicePlace> PlaceOf(tensorflow::OpKernelContext* context);

// Makes an error of a function of the library a status.
inline Status ToStatus(const DevicePlace& place, device::Error error, const char* what) {
  return device::ToStatus(*place.library, error, what);
}

// Devices of all ranks on the ordered lane. A job has none before its first collective of tensors on GPUs.
class Devices : public LaneExtension {
 public:
  // Returns the communicator of the lane's devices, on the lane. The first call connects them: a collective that all
  // ranks make at the same place in the lane's order. `place` is an error if this rank cannot take part; then all
  // ranks get it, in the place of the collective `name`.
  static Result<device::DeviceCommunicator*> Of(LaneJob& job, const Result<DevicePlace>& place, std::string_view name);

  explicit Devices(std::unique_ptr<device::DeviceCommunicator> communicator) : communicator_(std::move(communicator)) {}

  void ReleaseCommunicator() override { communicator_->ReleaseHost(); }
  void Leave(std::string_view how) override { communicator_->Leave(how); }
  void Abort(const Status& why) override { communicator_->Abort(why); }

 private:
  const std::unique_ptr<device::DeviceCommunicator> communicator_;
};

}  // namespace lockstep
