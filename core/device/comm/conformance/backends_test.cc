#include <string>
#include <vector>

#include "core/device/comm/conformance/emulated_job.h"
#include "core/testing/shapes_on_devices.h"

// The conformance tests of core/comm are a part of this program, and run on devices here. Each test runs on the shapes
// that it names for hosts, as far as they have at most 4 ranks. So the results of both backends equal the oracle bit
// for bit, and faults have the errors that they have on CPUs.
//
// `make test` takes some of these shapes: each number of ranks, each of the host's communicators and each backend of
// devices. Pairs that have code of their own are among them. These are NCCL's watch on one host and on several, and
// the staged copies with an even and an odd number of ranks.

namespace lockstep::device {
namespace {

std::vector<JobShape> Shapes(const std::vector<JobShape>& of_hosts) {
  return ShapesOnDevices(
      of_hosts, 4, {"shm_1_nccl", "shm_3_nccl", "gloo_2_nccl", "shm_2_staged", "gloo_3_staged", "auto_4_aabb_nccl"});
}

[[maybe_unused]] const bool kIsSet = [] {
  TestedBackends& backends = BackendsOfThisProgram();
  backends.shapes = &Shapes;
  backends.on_device = [](const ContextOptions& options, Communicator& host) {
    return OnHostMemory::Create(EmulatedOptions(options), host);
  };
  return true;
}();

}  // namespace
}  // namespace lockstep::device
