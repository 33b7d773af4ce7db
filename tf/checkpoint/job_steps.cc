#include "tf/checkpoint/job_steps.h"

namespace lockstep {

Status AgreeOnStatus(Communicator& communicator, const std::string& name, const Status& status) {
  if (communicator.size() == 1) return status;
  return status.ok() ? communicator.Barrier(name) : communicator.Decline(name, status);
}

}  // namespace lockstep
