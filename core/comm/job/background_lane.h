#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/job/lane.h"
#include "core/comm/options.h"

namespace lockstep {

// Work beside the steps of training, such as writing a checkpoint: one piece after another, on a thread of low
// priority, with a communicator of its own. So its collectives have no place in the order of the steps' collectives.
// All ranks post the same work in the same order.
// ```cpp
// lane.Post([](Communicator& communicator) { return Write(communicator); });   // returns at once
// ...
// const std::optional<Status> ended = lane.Await(0);   // now and then: an error of the work
// ```
// The ranks connect when the first work begins, which may be hours after the start of the job. By then its rendezvous'
// port may belong to another process. So rank 0 reserves a port when the job starts, and all learn it then.
// Thread-safe.
class BackgroundLane {
 public:
  // Must not throw.
  using Work = std::function<Status(Communicator& communicator)>;

  // The place of the later rendezvous: `port` at the host of the job's rendezvous. On rank 0 also the socket that keeps
  // it. Port 0: the job's rendezvous is used again.
  struct Place {
    int port = 0;
    UniqueFd socket;
  };
  // On rank 0 of a job of several ranks, reserves a port. Nothing if that fails: then joining the job fails as well, or
  // the lane does without it.
  static Place Reserve(const ContextOptions& options);

  // options: the job's options.
  BackgroundLane(const ContextOptions& options, Place place);
  // Like Leave; waits until the running work has ended.
  ~BackgroundLane();

  // Posts `work` after all earlier work. `dropped` is called instead, on the lane, if the ranks can't connect or this
  // one has left; then that is the work's error.
  void Post(Work work, std::function<void()> dropped);

  // Waits until all work has ended, for at most `seconds`. Returns the first error of work that ended since the last
  // call that returned one; no value if work still waits or runs. The error of a connection is the error of all work.
  std::optional<Status> Await(double seconds);

  // Leaves the job (Communicator::Leave): work that runs, or waits for the ranks to connect, ends with CANCELLED. Later
  // work also does.
  void Leave(std::string_view how);
  // Does the same with Communicator::Abort.
  void Abort(const Status& why);

 private:
  // Returns the communicator, which it makes if there is none.
  Result<Communicator*> Connected();
  // Returns the error of work after Leave or Abort.
  static Status Gone() { return Cancelled("this rank has left the job"); }
  Status Run(const Work& work, const std::function<void()>& dropped);

  ContextOptions options_;
  Place place_;  // used by the lane
  Mutex mutex_;
  CondVar ended_;
  int pending_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  Status error_ LOCKSTEP_GUARDED_BY(mutex_);  // the first one that no caller got yet
  bool left_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Communicator> communicator_ LOCKSTEP_GUARDED_BY(mutex_);  // set by the lane
  std::optional<Lane> lane_;                                                // last: its thread uses the others
};

}  // namespace lockstep
