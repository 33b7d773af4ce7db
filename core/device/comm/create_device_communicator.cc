#include "core/device/comm/create_device_communicator.h"

#include "core/base/strings.h"
#include "core/device/comm/nccl_communicator.h"
#include "core/device/comm/staged_communicator.h"

namespace lockstep::device {

// A rank with bad options declines, so that the others do not wait for it.
Result<std::unique_ptr<DeviceCommunicator>> CreateDeviceCommunicator(const CommOptions& options, Communicator& host) {
  Status status;
  if (options.library == nullptr) status = InvalidArgument("devices: no library is loaded");
  if (options.channels < 1)
    status = InvalidArgument(StrCat("devices: ", options.channels, " channels, wanted 1 or more"));
  if (status.ok() && options.backend == "nccl") return NcclCommunicator::Create(options, host);
  if (status.ok() && options.backend == "staged") return StagedCommunicator::Create(options, host);
  if (status.ok()) {
    status = InvalidArgument(StrCat("devices: backend '", options.backend, "', wanted 'nccl' or 'staged'"));
  }
  return host.Decline("start of devices", status);
}

}  // namespace lockstep::device
