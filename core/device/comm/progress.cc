#include "core/device/comm/progress.h"

#include <chrono>
#include <utility>
#include <vector>

namespace lockstep::device {
namespace {

// A call that has just begun is looked at often, because most last tens of microseconds; later less often.
constexpr double kBriefly_s = 0.002;
constexpr auto kBriefSleep = std::chrono::microseconds(50);
constexpr double kSleep_s = 0.0002;

}  // namespace

Progress::Progress(const Library& library, int device, Hooks hooks)
    : library_(library), device_(device), hooks_(std::move(hooks)) {
  thread_ = std::thread([this] { Run(); });
}

void Progress::Close() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    is_closing_ = true;
    changed_.NotifyAll();
  }
  if (watch() != nullptr) watch()->Wake();
  thread_.join();
}

void Progress::Add(std::shared_ptr<PendingCall> call) {
  {
    const MutexLock lock(mutex_);
    calls_.push_back({++num_calls_, std::move(call)});
    changed_.NotifyAll();
  }
  if (watch() != nullptr) watch()->Wake();
}

// Calls that have already ended well stay well. Their functions may use the device, and any thread may call this.
bool Progress::End(const Status& why) {
  (void)library_.set_device(device_);
  (void)Collect();  // the thread sees its error again, or there is one already
  bool had_calls;
  {
    const MutexLock lock(mutex_);
    had_calls = !calls_.empty();
    if (!end_.ok()) return had_calls;
    end_ = why;
    unwound_ = Deadline::After(kUnwind_s);
    changed_.NotifyAll();
  }
  if (watch() != nullptr) watch()->Wake();
  return had_calls;
}

void Progress::set_connecting(std::string what) {
  {
    const MutexLock lock(mutex_);
    connecting_ = std::move(what);
  }
  if (watch() != nullptr) watch()->Wake();
}

void Progress::TellLeft(std::string_view how) {
  int64_t ended;
  {
    const MutexLock lock(mutex_);
    farewell_ = how;
    ended = calls_.empty() ? num_calls_ : calls_.front().number - 1;
  }
  watch()->TellLeft(how, ended);
}

void Progress::Run() {
  (void)library_.set_device(device_);  // an error comes again from the first event
  std::optional<Deadline> since;       // set when the oldest call changes
  int64_t oldest = 0;
  bool failed = false;
  while (true) {
    if (const Status device = Collect(); !device.ok() && hooks_.on_failure != nullptr && !std::exchange(failed, true)) {
      hooks_.on_failure(device, false);
    }
    const std::optional<PeerWatch::Waiting> waiting = Oldest(&reached_);
    if (!waiting) {
      const MutexLock lock(mutex_);
      if (is_closing_ && calls_.empty()) break;
      since.reset();
    } else if (!since || oldest != waiting->number) {
      oldest = waiting->number;
      since = Deadline::After(kBriefly_s);
    }
    Sleep(waiting.has_value(), since.value_or(Deadline::After(0)));
    if (watch() == nullptr || failed) continue;
    const Status why = Judge(waiting);
    if (why.ok()) continue;
    failed = true;
    hooks_.on_failure(why, watch()->is_ended_by_peer());
  }
  if (watch() == nullptr) return;
  std::string farewell;
  bool has_failed;
  {
    const MutexLock lock(mutex_);
    has_failed = !end_.ok();
    farewell = farewell_;
  }
  if (!has_failed) TellLeft(farewell);
  watch()->Flush();
}

Status Progress::Judge(const std::optional<PeerWatch::Waiting>& waiting) {
  LOCKSTEP_RETURN_IF_ERROR(watch()->Judge(waiting, reached_));
  if (!waiting || hooks_.look == nullptr) return OkStatus();
  if (!seen_until_) {
    seen_ = hooks_.look();
    if (seen_.ok()) return OkStatus();
    seen_until_ = Deadline::After(kPatience_s);
  }
  return seen_until_->Passed() ? seen_.WithPrefix(waiting->operation + ": ") : OkStatus();
}

void Progress::Sleep(bool is_pending, const Deadline& since) {
  if (is_pending && !since.Passed()) {
    std::this_thread::sleep_for(kBriefSleep);
    if (watch() != nullptr) watch()->Await(0.0);
    return;
  }
  if (watch() != nullptr) return watch()->Await(is_pending ? std::optional(kSleep_s) : std::nullopt);
  const MutexLock lock(mutex_);
  if (is_pending) {
    (void)changed_.WaitFor(mutex_, std::chrono::duration<double>(kSleep_s));
  } else {
    while (calls_.empty() && !is_closing_) changed_.Wait(mutex_);
  }
}

// Calls of several channels end in any order.
Status Progress::Collect() {
  Status device;
  std::vector<std::pair<std::shared_ptr<PendingCall>, Status>> ended;
  {
    const MutexLock lock(mutex_);
    const bool is_unwound = unwound_ && unwound_->Passed();
    for (auto entry = calls_.begin(); entry != calls_.end();) {
      bool has_passed = false;
      Status status = ToStatus(library_, library_.has_passed(entry->call->ended(), &has_passed), "has_passed");
      if (!has_passed && status.ok() && !is_unwound) {
        ++entry;
        continue;
      }
      if (!status.ok() && device.ok()) device = status.WithPrefix(entry->call->operation() + ": ");
      ended.emplace_back(std::move(entry->call), end_.ok() ? std::move(status) : end_);
      entry = calls_.erase(entry);
    }
  }
  for (auto& [call, status] : ended) call->Finish(status);
  return device;
}

std::optional<PeerWatch::Waiting> Progress::Oldest(int64_t* reached) {
  const MutexLock lock(mutex_);
  std::optional<PeerWatch::Waiting> oldest;
  if (!connecting_.empty()) oldest = {0, connecting_, true};
  int64_t last = num_calls_;
  for (const Entry& entry : calls_) {
    bool has_begun = false;
    if (library_.has_passed(entry.call->begun(), &has_begun) != kSuccess) has_begun = true;
    if (!oldest) oldest = {entry.number, entry.call->operation(), has_begun};
    if (!has_begun) {
      last = entry.number - 1;
      break;
    }
  }
  *reached = last;
  return oldest;
}

}  // namespace lockstep::device
