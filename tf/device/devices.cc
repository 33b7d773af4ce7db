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

// Memory of TensorFlow's allocator, which owns nearly all of a device's memory. The allocator keeps the order of
// TensorFlow's stream, and work of this stream may still use what it returns. The caller has other streams. So this
// waits for the stream, which waits for no collective; memory is kept and seldom asked for.
Result<std::shared_ptr<void>> AllocateFrom(tf::Allocator* allocator, const DevicePlace& place, int64_t bytes) {
  void* const memory = allocator->AllocateRaw(tf::Allocator::kAllocatorAlignment, static_cast<size_t>(bytes));
  if (memory == nullptr) {
    return ResourceExhausted(absl::StrCat("no ", bytes, " bytes of memory of ", allocator->Name()));
  }
  std::shared_ptr<void> owned(memory, [allocator](void* old) { allocator->DeallocateRaw(old); });
  LOCKSTEP_RETURN_IF_ERROR(ToStatus(place, place.library->set_device(place.device), "set_device"));
  LOCKSTEP_RETURN_IF_ERROR(ToStatus(place, place.library->synchronize_stream(place.stream), "synchronize_stream"));
  return owned;
}

}  // namespace

Result<DevicePlace> PlaceOf(tf::OpKernelContext* context) {
  LOCKSTEP_ASSIGN_OR_RETURN(const device::Library* const library, device::LoadLibrary());
  LOCKSTEP_ASSIGN_OR_RETURN(const RawDevice raw, RawDeviceOf(context));
  LOCKSTEP_RETURN_IF_ERROR(device::ToStatus(*library, library->set_device(raw.number), "set_device"));
  const DevicePlace place = {library, raw.number, raw.stream};
  tf::Allocator* const allocator = context->device()->GetAllocator({});
  const int noted =
      NoteProcessDevice({raw.number, [=](int64_t bytes) { return AllocateFrom(allocator, place, bytes); }});
  if (noted == raw.number) return place;
  return FailedPrecondition(absl::StrCat("'", context->op_kernel().name(), "' has tensors on GPU ", raw.number,
                                         ", and this worker exchanges tensors on GPU ", noted,
                                         ": use one GPU in each worker"));
}

Result<device::DeviceCommunicator*> Devices::Of(LaneJob& job, const Result<DevicePlace>& place, std::string_view name) {
  const auto* devices = static_cast<const Devices*>(job.extension());
  if (devices == nullptr) {
    if (!place.ok()) return job.communicator().Decline(name, place.status());
    const Result<device::CommOptions> options = DeviceCommOptions(job.options());
    if (!options.ok()) return job.communicator().Decline(name, options.status());
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<device::DeviceCommunicator> made,
                              device::CreateDeviceCommunicator(*options, job.communicator()));
    auto owned = std::make_unique<Devices>(std::move(made));
    devices = owned.get();
    job.Extend(std::move(owned));
  }
  device::DeviceCommunicator& communicator = *devices->communicator_;
  if (!place.ok()) return communicator.Decline(name, place.status());
  return &communicator;
}

}  // namespace lockstep
