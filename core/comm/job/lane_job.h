#pragma once

#include <atomic>
#include <memory>
#include <string_view>
#include <utility>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/job/run_agreement.h"
#include "core/comm/options.h"

namespace lockstep {

// A user of a lane's communicator that makes collectives of its own over it, as the devices do (tf/device/devices.h).
class LaneExtension {
 public:
  virtual ~LaneExtension() = default;
  // Waits until no call of the extension uses the communicator. On the lane.
  virtual void ReleaseCommunicator() = 0;
  // As in Communicator; they include the communicator's own. Any thread.
  virtual void Leave(std::string_view how) = 0;
  virtual void Abort(const Status& why) = 0;
};

// The communicator of a lane, and what belongs to it. The lane's thread has a share, so it lives until all work of the
// lane has run.
class LaneJob {
 public:
  LaneJob(ContextOptions options, std::unique_ptr<Communicator> communicator)
      : options_(std::move(options)), communicator_(std::move(communicator)) {}

  const ContextOptions& options() const { return options_; }
  Communicator& communicator() { return *communicator_; }
  RunAgreement& run_agreement() { return run_agreement_; }

  // Returns what Extend was given; null before. Any thread.
  LaneExtension* extension() const { return shown_.load(); }
  // Adds the extension, of which a lane has one. On the lane.
  LaneExtension& Extend(std::unique_ptr<LaneExtension> extension) {
    extension_ = std::move(extension);
    shown_ = extension_.get();
    return *extension_;
  }

  // Returns the communicator for collectives of the lane's own work. On the lane, which waits for calls of the
  // extension that use it.
  Communicator& OwnCommunicator() {
    if (LaneExtension* const extension = this->extension()) extension->ReleaseCommunicator();
    return *communicator_;
  }

  // Leaves the job, or aborts it, on this lane. Any thread.
  void Leave(std::string_view how) {
    if (LaneExtension* const extension = this->extension()) extension->Leave(how);
    communicator_->Leave(how);
  }
  void Abort(const Status& why) {
    if (LaneExtension* const extension = this->extension()) extension->Abort(why);
    communicator_->Abort(why);
  }

 private:
  const ContextOptions options_;
  const std::unique_ptr<Communicator> communicator_;
  RunAgreement run_agreement_;
  std::unique_ptr<LaneExtension> extension_;  // ends before the communicator, which it uses
  std::atomic<LaneExtension*> shown_{nullptr};
};

}  // namespace lockstep
