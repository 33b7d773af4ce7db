#include "tf/device/kernels_for_gpus.h"

#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "core/device/load.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tf/bridge/host_memory.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

struct Registration {
  const char* op;
  std::vector<std::string> on_host;
  KernelForGpus::Create create;
};

std::vector<Registration>& Registrations() {
  static auto& registrations = *new std::vector<Registration>;
  return registrations;
}

// Counting devices would begin to use the driver, which a later fork of this process then could not.
bool HasDriver() {
  constexpr int kLeastDriver = 13000;  // CUDA 13.0
  const Result<const device::Library*> library = device::LoadLibrary();
  int version = 0;
  return library.ok() && (*library)->driver_version(&version) == device::kSuccess && version >= kLeastDriver;
}

}  // namespace

KernelForGpus::KernelForGpus(const char* op, std::vector<std::string> on_host, Create create) {
  Registrations().push_back({op, std::move(on_host), create});
}

void lockstep_register_kernels_for_gpus() {
  std::set<std::string> of_devices;
  if (HasDriver()) {
    for (const Registration& kernel : Registrations()) {
      tf::KernelDefBuilder definition(kernel.op);
      definition.Device(tf::DEVICE_GPU);
      for (const std::string& argument : kernel.on_host) definition.HostMemory(argument.c_str());
      // It takes the definition.
      tf::kernel_factory::OpKernelRegistrar(definition.Build(), "lockstep on devices", kernel.create);
      of_devices.insert(kernel.op);
    }
  }
  const auto is_ours = [](const tf::KernelDef& kernel) {
    return kernel.device_type() == tf::DEVICE_CPU && absl::StartsWith(kernel.op(), "Lockstep");
  };
  const tf::KernelList kernels = tf::GetFilteredRegisteredKernels(is_ours);
  for (const tf::KernelDef& kernel : kernels.kernel()) {
    if (!of_devices.contains(kernel.op())) RegisterOnHost(kernel);
  }
}

}  // namespace lockstep
