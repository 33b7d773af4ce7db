#include "core/comm/job/context.h"

#include <random>
#include <utility>

#include "core/base/cores.h"
#include "core/comm/job/bootstrap.h"
#include "core/comm/job/observed_communicator.h"

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

// Starts the timeline of this rank, together with all ranks. If a rank cannot write its file, all get its error.
Status StartTimeline(const ContextOptions& options, Telemetry& telemetry, Communicator& communicator,
                     std::unique_ptr<TraceFile> file) {
  std::random_device random;
  uint64_t job = (uint64_t{random()} << 32) + random();
  LOCKSTEP_RETURN_IF_ERROR(communicator.Broadcast("timeline", 0, sizeof(job), &job));
  return telemetry.StartTimeline(std::move(file), {options.rank, options.size, job});
}

}  // namespace

Result<std::unique_ptr<Communicator>> CreateCommunicator(const ContextOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(options.Validate());
  const auto telemetry = options.telemetry != nullptr ? options.telemetry : std::make_shared<Telemetry>();
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> inner, Assemble(options));
  const bool is_ordered = options.purpose == ContextOptions().purpose;
  // From here on counted: the timeline has the lanes that are open.
  const auto observed = [&](std::unique_ptr<Communicator> made) {
    return std::make_unique<ObservedCommunicator>(std::move(made), telemetry, is_ordered ? "ordered" : options.purpose);
  };
  if (options.timeline.empty()) return std::unique_ptr<Communicator>(observed(std::move(inner)));
  Result<std::unique_ptr<TraceFile>> file = telemetry->OpenTimeline(options.timeline, options.rank);
  if (!file.ok()) return inner->Decline("timeline", file.status());
  Communicator& plain = *inner;
  std::unique_ptr<Communicator> communicator = observed(std::move(inner));
  LOCKSTEP_RETURN_IF_ERROR(StartTimeline(options, *telemetry, plain, *std::move(file)));
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
  // The lane ends first: posted work still runs on the communicator.
  lane_.reset();
}

}  // namespace lockstep
