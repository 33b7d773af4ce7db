#include "core/comm/job/create_communicator.h"

#include <random>
#include <string>
#include <utility>

#include "core/comm/job/bootstrap.h"
#include "core/telemetry/telemetry.h"

namespace lockstep {
namespace {

// Returns a random number, the same on all ranks, by which the files of their timelines know each other. Ends with the
// error of a rank that declined.
Result<uint64_t> AgreeOnJob(Communicator& communicator) {
  std::random_device random;
  uint64_t job = (uint64_t{random()} << 32) + random();
  LOCKSTEP_RETURN_IF_ERROR(communicator.Broadcast("timeline", 0, sizeof(job), &job));
  return job;
}

}  // namespace

Result<std::unique_ptr<Communicator>> CreateCommunicator(const ContextOptions& options, int* later_port) {
  LOCKSTEP_RETURN_IF_ERROR(options.Validate());
  const auto telemetry = options.telemetry != nullptr ? options.telemetry : std::make_shared<Telemetry>();
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator, Assemble(options, later_port));
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

}  // namespace lockstep
