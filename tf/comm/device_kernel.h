#pragma once

#include <functional>
#include <string>

#include "core/base/status.h"
#include "core/device/comm/device_communicator.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/comm/collective_kernel.h"
#include "tf/device/devices.h"
#include "tf/device/kernels_for_gpus.h"

namespace lockstep {

// Base of the kernels for GPUs of collectives: tensors are in a GPU's memory, and no thread waits for a GPU. A kernel
// implements the first step, and returns the two others:
// ```
//   Prepare   on TensorFlow's thread: checks, allocates, and puts packing into TensorFlow's stream. Never waits.
//   enqueue   on the context's lane: puts the collective into the stream of devices. There it begins after the work
//             that TensorFlow's stream has now. It may wait for the other ranks' threads, and allocate outputs.
//   finish    when the collective has ended, on a thread of devices: puts unpacking into TensorFlow's stream. Never
//             waits. Empty: there is nothing to unpack.
// ```
// TensorFlow's stream never waits for the collective, so the rest of the backward pass runs meanwhile. The kernel is
// done when its collective has ended and no error of it can come any more. Work that TensorFlow puts into its stream
// then reads the results.
//
// Memory: TensorFlow uses a tensor's memory again in the order of its stream. Inputs, and the tensors that `enqueue`
// and `finish` hold, live until the kernel is done.
//
// An error in Prepare is declined, as in CollectiveKernel.
class DeviceKernel : public LaneKernel {
 public:
  using LaneKernel::LaneKernel;

 protected:
  struct DeviceCall {
    tensorflow::OpKernelContext* context;
    Context& engine;
    DevicePlace place;
  };
  struct Collective {
    std::function<Result<device::Ticket>(device::DeviceCommunicator&)> enqueue;
    std::function<Status()> finish = {};
  };

  virtual Result<Collective> Prepare(const DeviceCall& call) = 0;

  // Returns the name of the collective for the comparison between ranks: `name`, marked, so that it differs from the
  // one of a rank whose tensors are on a CPU.
  static std::string NameOnDevices(const std::string& name);

 private:
  Work WorkOf(const Call& call) final;
};

// Returns a tensor of the device's memory for the kernel's own use. RESOURCE_EXHAUSTED without memory.
Result<tensorflow::Tensor> AllocateOnDevice(tensorflow::OpKernelContext* context, tensorflow::DataType dtype,
                                            const tensorflow::TensorShape& shape);

}  // namespace lockstep
