#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/job/background_lane.h"
#include "core/comm/job/lane.h"
#include "core/comm/job/lane_job.h"
#include "core/comm/job/run_agreement.h"
#include "core/comm/options.h"

// Folder job/: the engine of one process. It chooses the backend, connects, and runs the collectives of the ordered
// lane.

namespace lockstep {

// The engine of one process: its communicator and the lane that runs its collectives. It owns all state; nothing in the
// core is global, and a process may have several contexts (tests run the ranks of a job as threads). capi/capi.h keeps
// the one default context for ops.
// ```cpp
// LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::Create(options));
// context->lane().Post([&] { status = context->communicator().Barrier("start"); done.set_value(); });
// ```
// The references that it returns are to objects that it owns: communicator(), job(), lane(), background() and
// run_agreement() live as long as it does. For posted work, the job with the communicator and the agreement lives until
// that work has run.
// Thread-safe if collectives go through the lane: the communicator accepts one at a time.
class Context {
 public:
  // Joins the other ranks and connects. It waits for at most rendezvous_timeout_s, and up to 10 s longer for rank 0's
  // report of the missing ranks, which the error names (DEADLINE_EXCEEDED). FAILED_PRECONDITION if settings or secrets
  // differ, or a rank occurs twice. INVALID_ARGUMENT from Validate, or for an address that cannot be resolved.
  // UNAVAILABLE if a rank cannot be reached or goes away. RESOURCE_EXHAUSTED without memory. After an error nothing is
  // left behind.
  static Result<std::unique_ptr<Context>> Create(const ContextOptions& options);
  // Runs the work that is posted on the lane, then leaves the job (Communicator::Leave). To end at once, call Leave or
  // Abort first. Background work ends with CANCELLED. If work on the lane destroys the last owner, the destructor does
  // not wait: work posted after it runs later, and then the job is left.
  ~Context();

  const ContextOptions& options() const { return job_->options(); }
  Communicator& communicator() { return job_->communicator(); }
  // Returns what work on the lane uses.
  LaneJob& job() { return *job_; }
  Lane& lane() { return *lane_; }
  // Returns the lane for work beside the steps, which is made at the first call.
  BackgroundLane& background();
  // Like BackgroundLane::Await; without such work there is nothing to wait for.
  std::optional<Status> AwaitBackground(double seconds);
  // Leaves the job on both lanes (Communicator::Leave).
  void Leave(std::string_view how);
  // Does the same with Communicator::Abort.
  void Abort(const Status& why);
  // Returns the agreement of this job's ranks on the graphs that they run.
  RunAgreement& run_agreement() { return job_->run_agreement(); }

 private:
  Context(const ContextOptions& options, std::unique_ptr<Communicator> communicator, BackgroundLane::Place later);

  const std::shared_ptr<LaneJob> job_;
  std::unique_ptr<Lane> lane_;
  Mutex background_mutex_;
  BackgroundLane::Place later_ LOCKSTEP_GUARDED_BY(background_mutex_);                 // until the lane is made
  std::unique_ptr<BackgroundLane> background_ LOCKSTEP_GUARDED_BY(background_mutex_);  // once made, it stays
};

}  // namespace lockstep
