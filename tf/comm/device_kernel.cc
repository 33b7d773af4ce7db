#include "tf/comm/device_kernel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/telemetry/clock.h"

namespace lockstep {

namespace tf = ::tensorflow;

std::string DeviceKernel::NameOnDevices(const std::string& name) { return absl::StrCat(name, " on GPUs"); }

LaneKernel::Work DeviceKernel::WorkOf(const Call& call) {
  Result<DevicePlace> place = PlaceOf(call.context);
  Result<Collective> collective = place.ok() ? Prepare({call.context, call.engine, *place}) : place.status();
  return [this, place = std::move(place), collective = std::move(collective)](LaneJob& job, const End& end) {
    const int64_t begin_ns = SteadyNs();
    Result<device::DeviceCommunicator*> devices = Devices::Of(job, place, NameOnDevices(collective_name()));
    if (!devices.ok()) return end(devices.status());
    const auto enqueued = [&]() -> Result<device::Ticket> {
      if (!collective.ok()) return (*devices)->Decline(NameOnDevices(collective_name()), collective.status());
      return collective->enqueue(**devices);
    };
    const Result<device::Ticket> ticket = enqueued();
    if (LaneCounters* const counters = job.communicator().counters()) counters->AddExchange(SteadyNs() - begin_ns);
    if (!ticket.ok()) return end(ticket.status());
    ticket->Then(
        [finish = collective->finish, end](const Status& ended) { end(ended.ok() && finish ? finish() : ended); });
  };
}

Result<tf::Tensor> AllocateOnDevice(tf::OpKernelContext* context, tf::DataType dtype, const tf::TensorShape& shape) {
  tf::Tensor temporary;
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_temp(dtype, shape, &temporary)));
  return temporary;
}

}  // namespace lockstep
