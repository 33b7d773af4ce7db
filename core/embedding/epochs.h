#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "core/base/mutex.h"

namespace lockstep {

// Delays the reuse of objects that readers without locks may still use. Readers hold a Guard. A writer that unlinks an
// object hands over the rest of its work: freeing the memory, or returning the number. It runs when all guards of that
// moment are gone:
// ```cpp
// const Epochs::Guard guard = epochs.Enter();     // reader: found objects stay unchanged
// ...
// unlink(row);                                    // writer: the row can no longer be found
// epochs.Retire([=] { free_rows.Give(row); });    // runs when no reader uses it any more
// ```
// A guard is for a batch of keys, not for one key, because entering and leaving take a mutex. Guards may be moved to
// other threads and left in any order. A guard delays only objects that are retired after it was entered. Thread-safe.
class Epochs {
 public:
  // Ends with its destruction; movable. The Epochs outlive it.
  class Guard {
   public:
    Guard() = default;
    Guard(Guard&& other) noexcept : epochs_(std::exchange(other.epochs_, nullptr)), epoch_(other.epoch_) {}
    Guard& operator=(Guard&& other) noexcept {
      std::swap(epochs_, other.epochs_);
      std::swap(epoch_, other.epoch_);
      return *this;
    }
    ~Guard() {
      if (epochs_ != nullptr) epochs_->Leave(epoch_);
    }

   private:
    friend class Epochs;
    Guard(Epochs* epochs, int64_t epoch) : epochs_(epochs), epoch_(epoch) {}

    Epochs* epochs_ = nullptr;
    int64_t epoch_ = 0;
  };

  Guard Enter();

  // Runs `reclaim` once: on the thread that leaves the last guard in its way, or at once if there is none. It must not
  // enter or retire.
  void Retire(std::function<void()> reclaim);

 private:
  void Leave(int64_t epoch);
  using Work = std::vector<std::function<void()>>;
  // Takes what no guard delays any more out of the list. The caller runs it without the mutex.
  Work TakeReady() LOCKSTEP_REQUIRES(mutex_);
  static void Run(const Work& work);

  Mutex mutex_;
  int64_t epoch_ LOCKSTEP_GUARDED_BY(mutex_) = 0;                  // counts calls of Retire
  std::map<int64_t, int64_t> guards_ LOCKSTEP_GUARDED_BY(mutex_);  // number of guards by epoch
  // Each with the epoch that it ended.
  std::deque<std::pair<int64_t, std::function<void()>>> retired_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
