#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/options.h"
#include "core/device/comm/conformance/on_host_memory.h"
#include "core/device/library.h"
#include "core/testing/job.h"
#include "core/testing/long_tests.h"

extern "C" const lockstep::device::Library* lockstep_device_library();

// Ranks with emulated devices and the stand-in NCCL, for tests.
namespace lockstep::device {

// Returns the options of a rank's device. A device is for one rank: ranks that are threads share the emulated device.
inline CommOptions EmulatedOptions(const ContextOptions& options) {
  CommOptions emulated;
  emulated.library = lockstep_device_library();
  emulated.backend = options.device;
  emulated.nccl.file = LOCKSTEP_STANDIN_NCCL;  // defined by the build
  emulated.nccl.system = false;
  emulated.channels = options.device_channels;
  emulated.stall_timeout_s = options.stall_timeout_s;
  emulated.start_timeout_s = options.rendezvous_timeout_s;
  return emulated;
}

// Returns the shapes of jobs on devices for a test's shapes on hosts: with at most `most` ranks, by each backend.
// `make test` takes only those with the names in `quick`.
inline std::vector<JobShape> ShapesOnDevices(const std::vector<JobShape>& of_hosts, int most,
                                             const std::vector<std::string>& quick) {
  std::vector<JobShape> shapes;
  const auto add = [&](JobShape shape, const char* backend) {
    shape.device = backend;
    const bool is_quick = std::find(quick.begin(), quick.end(), ToString(shape)) != quick.end();
    if (is_quick || testing::RunsLongTests()) shapes.push_back(std::move(shape));
  };
  for (const JobShape& shape : of_hosts) {
    if (shape.size > most) continue;
    add(shape, "nccl");
    // The host's communicator does its part in its own tests.
    if (shape.size <= 3 && shape.backend != "auto") add(shape, "staged");
  }
  return shapes;
}

// A rank's part in a test of devices.
using DevicePart = std::function<std::string(OnHostMemory& rank)>;
inline Part OnDevices(const DevicePart& part) {
  return [part](Communicator& communicator) { return part(static_cast<OnHostMemory&>(communicator)); };
}

}  // namespace lockstep::device
