#include "core/comm/named/shared_links.h"

#include <chrono>
#include <utility>

#include "core/comm/named/named_messages.h"

namespace lockstep {

std::vector<SharedLinks::Event> SharedLinks::Await(std::optional<double> seconds) {
  const MutexLock reading(reading_);
  {
    const MutexLock lock(mutex_);
    if (!for_lane_.empty()) return std::exchange(for_lane_, {});
  }
  return Sort(links_.Await(seconds));
}

std::vector<SharedLinks::Event> SharedLinks::Sort(std::vector<Event> events) {
  std::vector<Event> for_lane, for_guest;
  for (Event& event : events) {
    if (event.closed) {
      for_guest.push_back(event);
      for_lane.push_back(std::move(event));
    } else if (is_admitted_ && named_messages::KindOf(event.message) == named_messages::kOfGuest) {
      for_guest.push_back({event.rank, event.message.substr(1)});
    } else {
      for_lane.push_back(std::move(event));
    }
  }
  if (!for_guest.empty()) {
    const MutexLock lock(mutex_);
    for (Event& event : for_guest) for_guest_.push_back(std::move(event));
    changed_.NotifyAll();
  }
  return for_lane;
}

// The lane looks before it waits. If it waits already, it reads by itself.
void SharedLinks::LookForGuest() {
  if (!reading_.try_lock()) return;
  std::vector<Event> for_lane = Sort(links_.Look());
  {
    const MutexLock lock(mutex_);
    for (Event& event : for_lane) for_lane_.push_back(std::move(event));
  }
  reading_.unlock();
}

void SharedLinks::Guest::Send(int rank, std::string_view message) {
  all_.links_.Send(rank, std::string(1, named_messages::kOfGuest).append(message));
}

std::vector<MessageLinks::Event> SharedLinks::Guest::Await(std::optional<double> seconds) {
  if (seconds) all_.LookForGuest();
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds.value_or(0));
  const MutexLock lock(all_.mutex_);
  while (all_.for_guest_.empty() && !all_.guest_wakes_) {
    if (!seconds) {
      all_.changed_.Wait(all_.mutex_);
      continue;
    }
    const std::chrono::duration<double> left = until - std::chrono::steady_clock::now();
    if (left.count() <= 0) break;
    (void)all_.changed_.WaitFor(all_.mutex_, left);
  }
  all_.guest_wakes_ = false;
  return std::exchange(all_.for_guest_, {});
}

void SharedLinks::Guest::Wake() {
  const MutexLock lock(all_.mutex_);
  all_.guest_wakes_ = true;
  all_.changed_.NotifyAll();
}

}  // namespace lockstep
