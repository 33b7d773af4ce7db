#include "core/comm/job/background_lane.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "core/comm/job/create_communicator.h"

namespace lockstep {
namespace {

constexpr char kPurpose[] = "background lane";
// The thread's priority: about a tenth of the processor's time if a thread of training wants all of it.
constexpr int kNice = 10;
// So a rank with other work falls behind an idle one by so many times more than in a step.
constexpr double kSlower = 10;

}  // namespace

BackgroundLane::BackgroundLane(const ContextOptions& options) : options_(options) {
  options_.purpose = kPurpose;
  options_.stall_timeout_s *= kSlower;
  options_.listener.reset();  // the caller's, who may have closed it
  options_.timeline.clear();
  // Large messages pass in pieces of their own, and need no memory of the job.
  options_.shared_bytes_per_rank = 0;
  options_.ended = [this] {
    const std::lock_guard lock(mutex_);
    return left_ ? Gone() : OkStatus();
  };
  lane_.emplace(/*spin_us=*/0);
  // In Linux each thread has a priority, and threads that it starts inherit it. Without it, work is just less polite.
  lane_->Post([] { (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice); });
}

BackgroundLane::~BackgroundLane() {
  Leave({});
  lane_.reset();
}

void BackgroundLane::Post(Work work, std::function<void()> dropped) {
  {
    const std::lock_guard lock(mutex_);
    ++pending_;
  }
  lane_->Post([this, work = std::move(work), dropped = std::move(dropped)]() mutable {
    const Status status = Run(work, dropped);
    // The objects of the work are released before a waiter continues.
    work = nullptr;
    dropped = nullptr;
    const std::lock_guard lock(mutex_);
    --pending_;
    if (error_.ok()) error_ = status;
    ended_.notify_all();
  });
}

Status BackgroundLane::Run(const Work& work, const std::function<void()>& dropped) {
  const Result<Communicator*> communicator = Connected();
  if (communicator.ok()) return work(**communicator);
  dropped();
  return communicator.status();
}

Result<Communicator*> BackgroundLane::Connected() {
  {
    const std::lock_guard lock(mutex_);
    if (left_) return Gone();
    if (communicator_ != nullptr) return communicator_.get();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> made, CreateCommunicator(options_));
  const std::lock_guard lock(mutex_);
  if (left_) return Gone();
  communicator_ = std::move(made);
  return communicator_.get();
}

std::optional<Status> BackgroundLane::Await(double seconds) {
  std::unique_lock lock(mutex_);
  if (!ended_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return pending_ == 0; })) {
    return std::nullopt;
  }
  return std::exchange(error_, OkStatus());
}

void BackgroundLane::Leave(std::string_view how) {
  const std::lock_guard lock(mutex_);
  left_ = true;
  if (communicator_ != nullptr) communicator_->Leave(how);
}

void BackgroundLane::Abort(const Status& why) {
  const std::lock_guard lock(mutex_);
  left_ = true;
  if (communicator_ != nullptr) communicator_->Abort(why);
}

}  // namespace lockstep
