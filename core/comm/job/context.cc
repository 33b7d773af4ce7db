#include "core/comm/job/context.h"

#include <random>
#include <string>
#include <utility>

#include "core/base/cores.h"
#include "core/comm/job/bootstrap.h"

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

// Returns a random number, the same on all ranks, by which the files of their timelines know each other. Ends with the
// error of a rank that declined.
Result<uint64_t> AgreeOnJob(Communicator& communicator) {
  std::random_device random;
  uint64_t job = (uint64_t{random()} << 32) + random();
  LOCKSTEP_RETURN_IF_ERROR(communicator.Broadcast("timeline", 0, sizeof(job), &job));
  return job;
}

}  // namespace

Result<std::unique_ptr<Communicator>> CreateCommunicator(const ContextOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(options.Validate());
  const auto telemetry = options.telemetry != nullptr ? options.telemetry : std::make_shared<Telemetry>();
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator, Assemble(options));
  const std::string lane = options.purpose == ContextOptions().purpose ? "ordered" : options.purpose;
  if (options.timeline.empty()) {
    communicator->ObserveCalls(telemetry, lane);
    return communicator;
  }
  Result<std::unique_ptr<TraceFile>> file = telemetry->OpenTimeline(options.timeline, options.rank);
  if (!file.ok()) return communicator->Decline("timeline", file.status());
  LOCKSTEP_ASSIGN_OR_RETURN(const uint64_t job, AgreeOnJob(*communicator));
  // The timeline has the lanes that are open.
  communicator->ObserveCalls(telemetry, lane);
  LOCKSTEP_RETURN_IF_ERROR(telemetry->StartTimeline(*std::move(file), {options.rank, options.size, job}));
  return communicator;
}

Result<std::unique_ptr<Context>> Context::Create(const ContextOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator, CreateCommunicator(options));
  return std::unique_ptr<Context>(new Context(options, std::move(communicator)));
}

Context::Context(ContextOptions options, std::unique_ptr<Communicator> communicator)
    : options_(std::move(options)),
      job_(std::make_shared<Job>()),
      lane_(std::make_unique<Lane>(LaneSpinUs(options_.size), job_)) {
  job_->communicator = std::move(communicator);
}

Context::~Context() {
  background_.reset();
  // The lane ends first: posted work still runs on the communicator.
  lane_.reset();
}

BackgroundLane& Context::background() {
  const std::lock_guard lock(background_mutex_);
  if (background_ == nullptr) background_ = std::make_unique<BackgroundLane>(options_);
  return *background_;
}

std::optional<Status> Context::AwaitBackground(double seconds) {
  BackgroundLane* lane = nullptr;
  {
    const std::lock_guard lock(background_mutex_);
    lane = background_.get();
  }
  return lane == nullptr ? OkStatus() : lane->Await(seconds);
}

void Context::Leave(std::string_view how) {
  {
    const std::lock_guard lock(background_mutex_);
    if (background_ != nullptr) background_->Leave(how);
  }
  communicator().Leave(how);
}

}  // namespace lockstep
