#include <string>
#include <vector>

#include "core/device/comm/conformance/emulated_job.h"

// Makes the conformance tests of core/comm, which are a part of this program, run on devices: each test on the shapes
// that it names for hosts, as far as they have at most 4 ranks. So the results of both backends equal the oracle bit
// for bit, and faults have the errors that they have on CPUs.

namespace lockstep::device {
namespace {

std::vector<JobShape> ShapesOnDevices(const std::vector<JobShape>& shapes) {
  std::vector<JobShape> on_devices;
  for (JobShape shape : shapes) {
    if (shape.size > 4) continue;
    shape.device = "nccl";
    on_devices.push_back(shape);
    // The host's communicator does its part in its own tests.
    if (shape.size > 3 || shape.backend == "auto") continue;
    shape.device = "staged";
    on_devices.push_back(shape);
  }
  return on_devices;
}

[[maybe_unused]] const bool kIsSet = [] {
  TestedBackends& backends = BackendsOfThisProgram();
  backends.shapes = &ShapesOnDevices;
  backends.on_device = [](const ContextOptions& options, Communicator& host) {
    return OnHostMemory::Create(EmulatedOptions(options), host);
  };
  return true;
}();

}  // namespace
}  // namespace lockstep::device
