#include "core/device/comm/ticket.h"

namespace lockstep::device {

Result<std::shared_ptr<PendingCall>> PendingCall::Create(const Library& library, std::string operation) {
  std::shared_ptr<PendingCall> call(new PendingCall(library, std::move(operation)));
  LOCKSTEP_RETURN_IF_ERROR(ToStatus(library, library.create_event(false, &call->begun_), "create_event"));
  LOCKSTEP_RETURN_IF_ERROR(ToStatus(library, library.create_event(false, &call->ended_), "create_event"));
  return call;
}

// An error here has been reported by another function before.
PendingCall::~PendingCall() {
  if (begun_ != nullptr) (void)library_.destroy_event(begun_);
  if (ended_ != nullptr) (void)library_.destroy_event(ended_);
}

void PendingCall::Fail(const Status& why) {
  const MutexLock lock(mutex_);
  if (!is_ending_ && status_.ok()) status_ = why;
}

void PendingCall::Finish(const Status& status) {
  std::vector<std::function<void(const Status&)>> then;
  std::vector<std::shared_ptr<void>> kept;
  Status end;
  {
    const MutexLock lock(mutex_);
    if (is_ending_) return;
    is_ending_ = true;
    if (status_.ok()) status_ = status;
    end = status_;
    then.swap(then_);
    kept.swap(kept_);
  }
  for (const auto& function : then) function(end);
  const MutexLock lock(mutex_);
  is_over_ = true;
  changed_.NotifyAll();
}

void PendingCall::Keep(std::shared_ptr<void> memory) {
  const MutexLock lock(mutex_);
  if (!is_ending_) kept_.push_back(std::move(memory));
}

bool PendingCall::is_over() const {
  const MutexLock lock(mutex_);
  return is_over_;
}

Status PendingCall::status() const {
  const MutexLock lock(mutex_);
  return is_over_ ? status_ : OkStatus();
}

Status PendingCall::Wait() const {
  const MutexLock lock(mutex_);
  while (!is_over_) changed_.Wait(mutex_);
  return status_;
}

void PendingCall::Then(std::function<void(const Status&)> function) {
  Status end;
  {
    const MutexLock lock(mutex_);
    if (!is_ending_) {
      then_.push_back(std::move(function));
      return;
    }
    end = status_;
  }
  function(end);
}

}  // namespace lockstep::device
