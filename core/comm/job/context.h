#pragma once

#include <memory>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/job/lane.h"
#include "core/comm/job/run_agreement.h"
#include "core/comm/options.h"

// Folder job/: the engine of one process. It chooses the backend, connects, and runs the collectives of the ordered
// lane.

namespace lockstep {

// Meets the other ranks and connects, by the backend of the options: what Context::Create does, whose errors it
// returns. For those who want a communicator of their own (named/named_lane.h).
Result<std::unique_ptr<Communicator>> CreateCommunicator(const ContextOptions& options);

// The engine of one process: its communicator and the lane that runs its collectives. Everything hangs off it; nothing
// in the core is global, and a process may have several contexts (tests run the ranks of a job as threads). The one
// default context that ops use is kept by capi/capi.h.
//
//   LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::Create(options));
//   context->lane().Post([&] { status = context->communicator().Barrier("start"); done.set_value(); });
//
// Owns what it hands out references to: communicator(), lane() and run_agreement() live as long as it does, and for
// what was posted on the lane the communicator and the agreement live until that has run. Thread-safe, where
// collectives go through the lane: the communicator takes one at a time.
class Context {
 public:
  // Meets the other ranks and connects. Waits for at most rendezvous_timeout_s, and up to 10 s longer for rank 0 to say
  // who is missing; the error names the ranks that are missing (DEADLINE_EXCEEDED). FAILED_PRECONDITION where settings
  // or secrets differ, or a rank is there twice; INVALID_ARGUMENT from Validate, or for an address that can't be
  // resolved; UNAVAILABLE where a rank can't be reached or goes away; RESOURCE_EXHAUSTED without memory. After an error
  // nothing is left behind.
  static Result<std::unique_ptr<Context>> Create(const ContextOptions& options);
  // Runs what is posted on the lane, then leaves the job (Communicator::Leave). To end at once, Leave or Abort first.
  // Where the lane's own work does it, by letting the last owner go, it does not wait: what is posted behind that work
  // runs later, and then the job is left.
  ~Context();

  const ContextOptions& options() const { return options_; }
  Communicator& communicator() { return *job_->communicator; }
  Lane& lane() { return *lane_; }
  // What the ranks of this job agreed on about the graphs that they run.
  RunAgreement& run_agreement() { return job_->run_agreement; }

 private:
  // What work on the lane refers to. The lane's thread has a share, so that it outlives the context where the last
  // owner of that goes on the lane.
  struct Job {
    std::unique_ptr<Communicator> communicator;
    RunAgreement run_agreement;
  };

  Context(ContextOptions options, std::unique_ptr<Communicator> communicator);

  const ContextOptions options_;
  std::shared_ptr<Job> job_;
  std::unique_ptr<Lane> lane_;
};

}  // namespace lockstep
