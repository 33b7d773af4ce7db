#include "core/embedding/epochs.h"

#include "core/base/mutex.h"

namespace lockstep {

Epochs::Guard Epochs::Enter() {
  const MutexLock lock(mutex_);
  ++guards_[epoch_];
  return {this, epoch_};
}

void Epochs::Retire(std::function<void()> reclaim) {
  MutexLock lock(mutex_);
  retired_.emplace_back(epoch_, std::move(reclaim));
  ++epoch_;
  const Work ready = TakeReady();
  lock.unlock();
  Run(ready);
}

void Epochs::Leave(int64_t epoch) {
  MutexLock lock(mutex_);
  const auto entered = guards_.find(epoch);
  if (--entered->second == 0) guards_.erase(entered);
  const Work ready = TakeReady();
  lock.unlock();
  Run(ready);
}

// A reader that entered in epoch e may have found an object that was retired in e or later.
Epochs::Work Epochs::TakeReady() {
  Work ready;
  while (!retired_.empty() && (guards_.empty() || retired_.front().first < guards_.begin()->first)) {
    ready.push_back(std::move(retired_.front().second));
    retired_.pop_front();
  }
  return ready;
}

void Epochs::Run(const Work& work) {
  for (const auto& reclaim : work) reclaim();
}

}  // namespace lockstep
