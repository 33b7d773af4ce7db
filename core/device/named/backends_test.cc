#include <algorithm>
#include <string>
#include <vector>

#include "core/device/named/test_tensors.h"
#include "core/testing/long_tests.h"

// Makes the tests of named lanes in core/comm/named, which are a part of this program, run with their tensors on
// devices, as far as they have at most 3 ranks. So results equal the oracle bit for bit, and errors equal the CPUs'
// errors.

namespace lockstep::device {
namespace {

// `make test` takes these: each number of ranks, each backend, and NCCL's watch on one host and on several.
bool IsShort(const JobShape& shape) {
  static const std::vector<std::string> names = {"shm_1_nccl", "shm_2_staged", "shm_3_nccl", "auto_2_ab_nccl",
                                                 "auto_3_aab_nccl"};
  return std::find(names.begin(), names.end(), ToString(shape)) != names.end();
}

std::vector<JobShape> ShapesOnDevices(const std::vector<JobShape>& shapes) {
  std::vector<JobShape> on_devices;
  for (JobShape shape : shapes) {
    if (shape.size > 3) continue;
    shape.device = "nccl";
    on_devices.push_back(shape);
    // The host's communicator does its part in its own tests.
    if (shape.backend == "auto") continue;
    shape.device = "staged";
    on_devices.push_back(shape);
  }
  if (!testing::RunsLongTests()) std::erase_if(on_devices, [](const JobShape& shape) { return !IsShort(shape); });
  return on_devices;
}

[[maybe_unused]] const bool kIsSet = [] {
  BackendsOfThisProgram().shapes = &ShapesOnDevices;
  TensorsOfThisProgram().place = &PlaceOnDevice;
  TensorsOfThisProgram().prepare = [](const ContextOptions& context, NamedLaneOptions& options) {
    if (!context.device.empty()) options.devices = NamedExchangeOnDevice(EmulatedExchange(context));
  };
  return true;
}();

}  // namespace
}  // namespace lockstep::device
