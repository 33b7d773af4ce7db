#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace lockstep {

// One thread that runs the collectives of a communicator, one after another in the order in which they were posted.
// Callers (TensorFlow's kernels) post and return at once, so that none of their threads waits for a peer.
//
//   lane.Post([&communicator, in, out, done] {
//     done(communicator.AllReduce("grad", ReduceOp::kSum, DType::kFloat32, count, in, out));
//   });
//
// Ranks have to post in the same order, as the collectives of a communicator have to match; the lane keeps the order
// and does not make it. Work that takes long (a callback that computes) holds up all collectives behind it.
//
// Between two pieces of work the thread spins for `spin_us` microseconds before it sleeps: work that follows closely is
// picked up in a microsecond or two, for the price of a core. 0: it sleeps at once. Work must not throw. Thread-safe.
class Lane {
 public:
  // The thread holds `kept` until it has run everything: what work refers to by plain references, without a share.
  explicit Lane(int spin_us = 50, std::shared_ptr<const void> kept = nullptr);
  // Runs what was posted, then ends. A caller that wants to leave at once aborts the communicator first. May be called
  // by the lane's own work, when that holds the last reference to the lane's owner; then it does not wait, and what was
  // posted behind that work runs later, when the owner is gone.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Puts `work` behind all that was posted. Never waits for work that runs. May be called by the lane's own work, and
  // not once the destructor has begun (but from that work). What `work` holds is released on the lane's thread.
  void Post(std::function<void()> work);

 private:
  // What the thread uses; it owns a share, so that the lane may go first.
  struct State {
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<std::function<void()>> queue;  // guarded by mutex
    bool closed = false;                      // guarded by mutex
    bool sleeps = false;                      // guarded by mutex
    std::atomic<uint64_t> news{0};            // raised under mutex when queue or closed changes
  };
  // The thread's body: returns when the lane is closed and the queue is empty.
  static void Run(State& state, int spin_us);

  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace lockstep
