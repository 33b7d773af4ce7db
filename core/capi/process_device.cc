#include "core/capi/process_device.h"

#include <optional>

#include "core/base/mutex.h"
#include "core/base/strings.h"
#include "core/capi/device_place.h"
#include "core/device/load.h"

namespace lockstep {
namespace {

struct Holder {
  Mutex mutex;
  std::optional<ProcessDevice> device LOCKSTEP_GUARDED_BY(mutex);
};

// Never destroyed, because lanes may ask for it until the end of the process.
Holder& TheHolder() {
  static auto& holder = *new Holder;
  return holder;
}

}  // namespace

int NoteProcessDevice(const ProcessDevice& device) {
  Holder& holder = TheHolder();
  const MutexLock lock(holder.mutex);
  if (!holder.device) holder.device = device;
  return holder.device->number;
}

// A process that joined its job before it had a GPU uses the backend that needs nothing else.
Result<device::CommOptions> DeviceCommOptions(const ContextOptions& job) {
  device::CommOptions options;
  LOCKSTEP_ASSIGN_OR_RETURN(options.library, device::LoadLibrary());
  options.backend = job.device.empty() ? "staged" : job.device;
  options.nccl = ProcessNcclPlace();
  options.native_sums = job.native_sums;
  options.channels = job.device_channels;
  options.stall_timeout_s = job.stall_timeout_s;
  options.start_timeout_s = job.rendezvous_timeout_s;
  Holder& holder = TheHolder();
  const MutexLock lock(holder.mutex);
  if (holder.device) {
    options.device = holder.device->number;
    options.allocate = holder.device->allocate;
    return options;
  }
  int count = 0;
  const char* why = "";
  LOCKSTEP_RETURN_IF_ERROR(device::ToStatus(*options.library, options.library->device_count(&count, &why), "GPUs"));
  if (count == 1) return options;
  return FailedPrecondition(StrCat("the other ranks exchange tensors on GPUs; this process has used none, and has ",
                                   count, ", wanted 1: let CUDA_VISIBLE_DEVICES name its GPU", count == 0 ? ": " : "",
                                   why));
}

}  // namespace lockstep
