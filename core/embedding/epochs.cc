#include "core/embedding/epochs.h"

#include <vector>

namespace lockstep {

Epochs::Guard Epochs::Enter() {
  const std::lock_guard lock(mutex_);
  ++guards_[epoch_];
  return {this, epoch_};
}

void Epochs::Retire(std::function<void()> reclaim) {
  std::unique_lock lock(mutex_);
  retired_.emplace_back(epoch_, std::move(reclaim));
  ++epoch_;
  Reclaim(std::move(lock));
}

void Epochs::Leave(int64_t epoch) {
  std::unique_lock lock(mutex_);
  const auto entered = guards_.find(epoch);
  if (--entered->second == 0) guards_.erase(entered);
  Reclaim(std::move(lock));
}

void Epochs::Reclaim(std::unique_lock<std::mutex> lock) {
  // A reader that entered in epoch e may have found an object that was retired in e or later.
  std::vector<std::function<void()>> ready;
  while (!retired_.empty() && (guards_.empty() || retired_.front().first < guards_.begin()->first)) {
    ready.push_back(std::move(retired_.front().second));
    retired_.pop_front();
  }
  lock.unlock();
  for (const auto& reclaim : ready) reclaim();
}

}  // namespace lockstep
