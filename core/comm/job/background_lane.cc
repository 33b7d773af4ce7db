#include "core/comm/job/background_lane.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/job/create_communicator.h"
#include "core/comm/rendezvous/rendezvous_wire.h"

namespace lockstep {
namespace {

constexpr char kPurpose[] = "background lane";
// The thread's priority: about a tenth of the processor's time if a thread of training wants all of it.
constexpr int kNice = 10;
// So a rank with other work falls behind an idle one by so many times more than in a step.
constexpr double kSlower = 10;

// Returns the host of "host:port", as it is written.
std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

}  // namespace

BackgroundLane::Place BackgroundLane::Reserve(const ContextOptions& options) {
  if (options.size == 1 || options.rank != 0) return {};
  Result<wire::Reserved> reserved = wire::Reserve(HostOf(options.listen.empty() ? options.rendezvous : options.listen));
  if (!reserved.ok()) return {};
  return {reserved->port, std::move(reserved->socket)};
}

BackgroundLane::BackgroundLane(const ContextOptions& options, Place place)
    : options_(options), place_(std::move(place)) {
  options_.purpose = kPurpose;
  options_.stall_timeout_s *= kSlower;
  options_.listener.reset();  // the caller's, who may have closed it
  if (place_.port != 0) options_.rendezvous = StrCat(HostOf(options_.rendezvous), ":", place_.port);
  if (place_.socket.valid()) options_.listener = place_.socket.get();
  options_.timeline.clear();
  // Large messages pass in pieces of their own, and need no memory of the job.
  options_.shared_bytes_per_rank = 0;
  options_.ended = [this] {
    const MutexLock lock(mutex_);
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
    const MutexLock lock(mutex_);
    ++pending_;
  }
  lane_->Post([this, work = std::move(work), dropped = std::move(dropped)]() mutable {
    const Status status = Run(work, dropped);
    // The objects of the work are released before a waiter continues.
    work = nullptr;
    dropped = nullptr;
    const MutexLock lock(mutex_);
    --pending_;
    if (error_.ok()) error_ = status;
    ended_.NotifyAll();
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
    const MutexLock lock(mutex_);
    if (left_) return Gone();
    if (communicator_ != nullptr) return communicator_.get();
  }
  if (place_.socket.valid() && listen(place_.socket.get(), SOMAXCONN) != 0) {
    return ErrnoStatus(StrCat("rank 0 cannot listen at '", options_.rendezvous, "' for background saves"), errno);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> made, CreateCommunicator(options_));
  // A fork may have a copy of the socket, so closing it is not enough.
  if (place_.socket.valid()) shutdown(place_.socket.get(), SHUT_RDWR);
  place_.socket = UniqueFd();
  const MutexLock lock(mutex_);
  if (left_) return Gone();
  communicator_ = std::move(made);
  return communicator_.get();
}

std::optional<Status> BackgroundLane::Await(double seconds) {
  const Deadline deadline = Deadline::After(seconds);
  const MutexLock lock(mutex_);
  while (pending_ != 0) {
    if (deadline.Passed()) return std::nullopt;
    ended_.WaitFor(mutex_, std::chrono::duration<double>(deadline.Left()));
  }
  return std::exchange(error_, OkStatus());
}

void BackgroundLane::Leave(std::string_view how) {
  const MutexLock lock(mutex_);
  left_ = true;
  if (communicator_ != nullptr) communicator_->Leave(how);
}

void BackgroundLane::Abort(const Status& why) {
  const MutexLock lock(mutex_);
  left_ = true;
  if (communicator_ != nullptr) communicator_->Abort(why);
}

}  // namespace lockstep
