#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "core/base/mutex.h"

namespace lockstep {

// One thread that runs the collectives of a communicator, one after another in the order of posting. Callers
// (TensorFlow's kernels) post and return at once, so that none of their threads waits for a peer.
// ```cpp
// lane.Post([&communicator, in, out, done] {
//   done(communicator.AllReduce("grad", ReduceOp::kSum, DType::kFloat32, count, in, out));
// });
// ```
// Ranks have to post in the same order, because the collectives of a communicator have to match; the lane keeps this
// order and does not create it. Work that takes long (a callback that computes) delays all collectives after it.
//
// Between two pieces of work the thread spins for `spin_us` microseconds before it sleeps. Work that follows closely is
// then started within a microsecond or two, which costs a core. With 0 it sleeps at once. Work must not throw.
// Thread-safe.
class Lane {
 public:
  // The thread holds `kept` until it has run everything: the objects that work uses by plain references.
  explicit Lane(int spin_us = 50, std::shared_ptr<const void> kept = nullptr);
  // Runs posted work, then ends. A caller that wants to end at once aborts the communicator first. The lane's own work
  // may call it, if it holds the last reference to the lane's owner. Then it does not wait, and work posted after that
  // runs later, when the owner is destroyed.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Posts `work` after all earlier work. Never waits for running work. The lane's own work may call it; other threads
  // may not once the destructor has begun. The objects that `work` holds are released on the lane's thread.
  void Post(std::function<void()> work);

 private:
  // The thread's data; it owns a share, so that the lane may be destroyed first.
  struct State {
    Mutex mutex;
    CondVar wake;
    std::deque<std::function<void()>> queue LOCKSTEP_GUARDED_BY(mutex);
    bool closed LOCKSTEP_GUARDED_BY(mutex) = false;
    bool sleeps LOCKSTEP_GUARDED_BY(mutex) = false;
    std::atomic<uint64_t> news{0};  // raised under mutex when queue or closed changes
  };
  // The thread's body: returns when the lane is closed and the queue is empty.
  static void Run(State& state, int spin_us);

  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace lockstep
