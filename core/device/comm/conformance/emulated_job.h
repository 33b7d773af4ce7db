#pragma once

#include <memory>
#include <string>

#include "core/comm/options.h"
#include "core/device/comm/conformance/on_host_memory.h"
#include "core/device/library.h"
#include "core/testing/job.h"
#include "core/testing/standin_nccl_file.h"

extern "C" const lockstep::device::Library* lockstep_device_library();

// Ranks with emulated devices and the stand-in NCCL, for tests.
namespace lockstep::device {

// Returns the options of a rank's device. A device is for one rank: ranks that are threads share the emulated device.
inline CommOptions EmulatedOptions(const ContextOptions& options) {
  CommOptions emulated;
  emulated.library = lockstep_device_library();
  emulated.backend = options.device;
  emulated.nccl.file = testing::StandinNcclFile();
  emulated.nccl.system = false;
  emulated.channels = options.device_channels;
  emulated.stall_timeout_s = options.stall_timeout_s;
  emulated.start_timeout_s = options.rendezvous_timeout_s;
  return emulated;
}

// A rank's part in a test of devices.
using DevicePart = std::function<std::string(OnHostMemory& rank)>;
inline Part OnDevices(const DevicePart& part) {
  return [part](Communicator& communicator) { return part(static_cast<OnHostMemory&>(communicator)); };
}

}  // namespace lockstep::device
