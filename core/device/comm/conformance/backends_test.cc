#include <algorithm>
#include <string>
#include <vector>

#include "core/device/comm/conformance/emulated_job.h"
#include "core/testing/long_tests.h"

// The conformance tests of core/comm are a part of this program, and run on devices here: each test on the shapes that
// it names for hosts, as far as they have at most 4 ranks. So the results of both backends equal the oracle bit for
// bit, and faults have the errors that they have on CPUs.
//
// `make test` takes some of these shapes: each number of ranks, each of the host's communicators and each backend of
// devices. Pairs that have code of their own are among them. These are NCCL's watch on one host and on several, and
// the staged copies with an even and an odd number of ranks.

namespace lockstep::device {
namespace {

bool IsShort(const JobShape& shape) {
  static const std::vector<std::string> names = {"shm_1_nccl",   "shm_3_nccl",    "gloo_2_nccl",
                                                 "shm_2_staged", "gloo_3_staged", "auto_4_aabb_nccl"};
  return std::find(names.begin(), names.end(), ToString(shape)) != names.end();
}

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
  if (!testing::RunsLongTests()) std::erase_if(on_devices, [](const JobShape& shape) { return !IsShort(shape); });
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
