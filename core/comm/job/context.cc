#include "core/comm/job/context.h"

#include <utility>

#include "core/base/cores.h"
#include "core/comm/job/create_communicator.h"

namespace lockstep {
namespace {

// A lane that spins takes a core from the threads that post its work, so it spins only if there are many cores.
// Measured with two ranks on two cores, for an allreduce of 4 bytes from op to op: 25 us without spinning, 100 us and
// more with it.
int LaneSpinUs(int ranks) {
  constexpr int kCoresPerRank = 4;
  constexpr int kSpinUs = 50;
  return AvailableCores() >= kCoresPerRank * ranks ? kSpinUs : 0;
}

}  // namespace

Result<std::unique_ptr<Context>> Context::Create(const ContextOptions& options) {
  BackgroundLane::Place later = BackgroundLane::Reserve(options);
  ContextOptions with_port = options;
  with_port.later_port = later.port;
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator, CreateCommunicator(with_port, &later.port));
  return std::unique_ptr<Context>(new Context(options, std::move(communicator), std::move(later)));
}

Context::Context(const ContextOptions& options, std::unique_ptr<Communicator> communicator, BackgroundLane::Place later)
    : job_(std::make_shared<LaneJob>(options, std::move(communicator))),
      lane_(std::make_unique<Lane>(LaneSpinUs(options.size), job_)),
      later_(std::move(later)) {}

Context::~Context() {
  background_.reset();
  // The lane ends first: posted work still runs on the communicator.
  lane_.reset();
}

BackgroundLane& Context::background() {
  const MutexLock lock(background_mutex_);
  if (background_ == nullptr) background_ = std::make_unique<BackgroundLane>(options(), std::move(later_));
  return *background_;
}

std::optional<Status> Context::AwaitBackground(double seconds) {
  BackgroundLane* lane = nullptr;
  {
    const MutexLock lock(background_mutex_);
    lane = background_.get();
  }
  return lane == nullptr ? OkStatus() : lane->Await(seconds);
}

void Context::Leave(std::string_view how) {
  {
    const MutexLock lock(background_mutex_);
    if (background_ != nullptr) background_->Leave(how);
  }
  job_->Leave(how);
}

void Context::Abort(const Status& why) {
  job_->Abort(why);
  const MutexLock lock(background_mutex_);
  if (background_ != nullptr) background_->Abort(why);
}

}  // namespace lockstep
