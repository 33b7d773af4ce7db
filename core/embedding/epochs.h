#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

namespace lockstep {

// Delays the reuse of what readers without locks may still look at. Readers hold a Guard; who takes something out of
// their reach hands over what remains to be done with it (free its memory, give its number away again), which is done
// when all guards that were there at that moment have gone:
//
//   const Epochs::Guard guard = epochs.Enter();     // reader: what I find stays what it is
//   ...
//   unlink(row);                                    // writer: nobody finds it any more
//   epochs.Retire([=] { free_rows.Give(row); });    // and nobody who has found it keeps it any longer
//
// A guard is for a batch of keys, not for one: entering and leaving take a mutex. Guards may be moved to other threads
// and left in any order. A guard that is held delays all that is retired after it was entered, and nothing else.
// Thread-safe.
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

  // Runs `reclaim` once, on the thread that leaves the last guard in its way, or at once where there is none. It must
  // not enter or retire.
  void Retire(std::function<void()> reclaim);

 private:
  void Leave(int64_t epoch);
  // Runs what no guard delays any more, with the mutex released.
  void Reclaim(std::unique_lock<std::mutex> lock);

  std::mutex mutex_;
  int64_t epoch_ = 0;                                              // guarded by mutex_: counts calls of Retire
  std::map<int64_t, int64_t> guards_;                              // guarded by mutex_: how many entered in an epoch
  std::deque<std::pair<int64_t, std::function<void()>>> retired_;  // guarded by mutex_: with the epoch that it ended
};

}  // namespace lockstep
