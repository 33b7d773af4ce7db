#include <string>
#include <vector>

#include "core/device/named/test_tensors.h"
#include "core/testing/emulator/fiber.h"
#include "core/testing/shapes_on_devices.h"

// Makes the tests of named lanes in core/comm/named, which are a part of this program, run with their tensors on
// devices, as far as they have at most 3 ranks. So results equal the oracle bit for bit, and errors equal the CPUs'
// errors.

namespace lockstep::device {
namespace {

// `make test` takes each number of ranks, each backend, and NCCL's watch on one host and on several.
std::vector<JobShape> Shapes(const std::vector<JobShape>& of_hosts) {
  return ShapesOnDevices(of_hosts, 3,
                         {"shm_1_nccl", "shm_2_staged", "shm_3_nccl", "auto_2_ab_nccl", "auto_3_aab_nccl"});
}

[[maybe_unused]] const bool kIsSet = [] {
  BackendsOfThisProgram().shapes = &Shapes;
  TensorsOfThisProgram().place = &PlaceOnDevice;
  TensorsOfThisProgram().before_forks = [] {
    TakenBefore::OfThisProcess().EndStreams();
    emulator::FiberPool::Clear();
  };
  TensorsOfThisProgram().prepare = [](const ContextOptions& context, NamedLaneOptions& options) {
    if (!context.device.empty()) options.devices = NamedExchangeOnDevice(EmulatedExchange(context));
  };
  return true;
}();

}  // namespace
}  // namespace lockstep::device
