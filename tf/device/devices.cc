#include "tf/device/devices.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/capi/process_device.h"
#include "core/device/comm/create_device_communicator.h"
#include "core/device/load.h"
#include "tensorflow/core/framework/device_base.h"

namespace lockstep {

namespace tf = ::tensorflow;

namespace {

// Memory of TensorFlow's allocator, which owns nearly all of a device's memory.
Result<std::shared_ptr<void>> AllocateFrom(tf::Allocator* allocator, int64_t bytes) {
  void* const memory = allocator->AllocateRaw(tf::Allocator::kAllocatorAlignment, static_cast<size_t>(bytes));
  if (memory == nullptr) {
    return ResourceExhausted(absl::StrCat("no ", bytes, " bytes of memory of ", allocator->Name()));
  }
  return std::shared_ptr<void>(memory, [allocator](void* old) { allocator->DeallocateRaw(old); });
}

}  // namespace

Result<DevicePlace> PlaceOf(tf::OpKernelContext* context) {
  LOCKSTEP_ASSIGN_OR_RETURN(const device::Library* const library, device::LoadLibrary());
  LOCKSTEP_ASSIGN_OR_RETURN(const RawDevice raw, RawDeviceOf(context));
  LOCKSTEP_RETURN_IF_ERROR(device::ToStatus(*library, library->set_device(raw.number), "set_device"));
  tf::Allocator* const allocator = context->device()->GetAllocator({});
  NoteProcessDevice({raw.number, [allocator](int64_t bytes) { return AllocateFrom(allocator, bytes); }});
  return DevicePlace{library, raw.number, raw.stream};
}

Result<device::DeviceCommunicator*> Devices::Of(LaneJob& job, const Result<DevicePlace>& place, std::string_view name) {
  const auto* devices = static_cast<const Devices*>(job.extension());
  if (devices == nullptr) {
    if (!place.ok()) return job.communicator().Decline(name, place.status());
    const Result<device::CommOptions> options = DeviceCommOptions(job.options());
    if (!options.ok()) return job.communicator().Decline(name, options.status());
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<device::DeviceCommunicator> made,
                              device::CreateDeviceCommunicator(*options, job.communicator()));
    auto owned = std::make_unique<Devices>(std::move(made), options->device);
    devices = owned.get();
    job.Extend(std::move(owned));
  }
  device::DeviceCommunicator& communicator = *devices->communicator_;
  if (!place.ok()) return communicator.Decline(name, place.status());
  if (place->device != devices->device_) {
    return communicator.Decline(
        name, FailedPrecondition(absl::StrCat("'", name, "' has tensors on GPU ", place->device, ", and rank ",
                                              communicator.rank(), " takes part with GPU ", devices->device_,
                                              ": use one GPU in each worker")));
  }
  return &communicator;
}

}  // namespace lockstep
