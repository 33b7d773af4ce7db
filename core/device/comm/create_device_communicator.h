#pragma once

#include <memory>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/device/comm/device_communicator.h"

namespace lockstep::device {

// Connects the devices of all ranks by the backend of the options; a collective over `host`, which all ranks make with
// the same backend, native_sums and channels. FAILED_PRECONDITION on all ranks if these differ, or if a rank has no
// NCCL; INVALID_ARGUMENT for options that no backend takes.
Result<std::unique_ptr<DeviceCommunicator>> CreateDeviceCommunicator(const CommOptions& options, Communicator& host);

}  // namespace lockstep::device
