#include <chrono>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/strings.h"
#include "core/comm/named/named_lane.h"
#include "core/telemetry/clock.h"

// The part of the lane for tensors on GPUs. The driver hands their batches on and continues; a thread of the device's
// exchange ends their requests.

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// How long the lane waits for the message of a rank that has ended an exchange, which says more than the exchange does.
constexpr auto kCauseWait = std::chrono::seconds(1);
// How long requests on the device may still need for what a lost rank has sent.
constexpr auto kGrace = std::chrono::milliseconds(250);

}  // namespace

// A rank without a GPU takes part by declining: the others wait for it in the start of the exchange.
Status NamedLane::MakeDevice() {
  {
    const MutexLock lock(mutex_);
    if (device_ != nullptr) return OkStatus();
  }
  if (options_.devices == nullptr) {
    return communicator_->Decline(
        "start of devices",
        FailedPrecondition(
            "a collective has tensors on GPUs, and this rank's named lane has no GPU; all ranks need one"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(auto made, options_.devices(*communicator_, shared_links_.guest()));
  const MutexLock lock(mutex_);
  device_ = std::move(made);
  return OkStatus();
}

void NamedLane::DoOnDevice(const NamedBatch& batch, std::vector<std::unique_ptr<NamedWork>> works) {
  const auto of = std::make_shared<OnDevice>(batch, std::move(works));
  std::vector<NamedWork*> pointers;
  for (const auto& work : of->works) pointers.push_back(work.get());
  timeline_.Begin(batch);
  const int64_t begin_ns = CountWait(batch, pointers);
  if (const Status made = MakeDevice(); !made.ok()) {
    const bool breaks = communicator_->broken();
    const Status why = breaks ? CauseOf(made) : made.WithPrefix(Describe(batch.entries.front().request) + ": ");
    timeline_.End(batch);
    for (NamedWork* const work : pointers) {
      if (work != nullptr) work->done(why, {});
    }
    if (breaks) Break(why);
    return;
  }
  NamedDeviceExchange* device;
  {
    const MutexLock lock(mutex_);
    device = device_.get();
    on_device_ += static_cast<int64_t>(pointers.size());
  }
  device->Run(
      of->batch, pointers, [this](const Status& error) { return CauseOf(error); },
      [this, device, of](size_t entry, const Status& status, const NamedWork::Outcome& outcome) {
        EndOnDevice(*device, *of, entry, status, outcome);
      });
  last_end_ns_ = SteadyNs();
  if (LaneCounters* const counters = communicator_->counters()) counters->AddExchange(last_end_ns_ - begin_ns);
}

void NamedLane::EndOnDevice(const NamedDeviceExchange& device, OnDevice& of, size_t entry, const Status& status,
                            const NamedWork::Outcome& outcome) {
  const bool breaks = !status.ok() && !device.broken().ok();
  const Status end = breaks ? CauseOnDevice(of.batch.entries[entry].request, status) : status;
  if (of.left.fetch_sub(1) == 1) timeline_.End(of.batch);
  {
    const MutexLock lock(mutex_);
    if (--on_device_ == 0) device_changed_.NotifyAll();
  }
  if (NamedWork* const work = of.works[entry].get()) {
    // The lane's thread drives the requests that `done` makes: this thread sees the devices finish.
    const bool drove = std::exchange(ThisThreadDrives(), true);
    work->done(end, outcome);
    ThisThreadDrives() = drove;
  }
  if (breaks) Break(end);
}

Status NamedLane::CauseOnDevice(const NamedRequest& request, const Status& status) {
  const auto end = Clock::now() + kCauseWait;
  const MutexLock lock(mutex_);
  while (broken_.ok() && status.code() == StatusCode::kCancelled && device_changed_.WaitUntil(mutex_, end)) continue;
  return broken_.ok() ? status : broken_.WithPrefix(Describe(request) + ": ");
}

void NamedLane::EndDevice(NamedDeviceExchange& device, bool leaves, const std::string& farewell, const Status& why) {
  if (leaves) device.Leave(farewell);
  bool is_idle = false;
  if (leaves || device.broken().ok()) {
    const auto end = Clock::now() + kGrace;
    const MutexLock lock(mutex_);
    while (on_device_ > 0 && device_changed_.WaitUntil(mutex_, end)) continue;
    is_idle = on_device_ == 0;
  }
  // The peers of a rank that has left end their calls, so calls of this rank that wait for them would not end.
  if (!leaves || !is_idle) device.Abort(why);
}

void NamedLane::ReleaseHost() {
  NamedDeviceExchange* device;
  {
    const MutexLock lock(mutex_);
    device = device_.get();
  }
  if (device != nullptr) device->ReleaseHost();
}

}  // namespace lockstep
