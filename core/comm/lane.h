#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace lockstep {

// One thread that runs the collectives of a communicator, one after another in the order in which they were posted.
// Callers (TensorFlow's kernels) post and return at once, so that none of their threads waits for a peer.
//
// Between two pieces of work the thread spins for `spin_us` before it sleeps: work that follows closely is picked up in
// a microsecond or two. Work must not throw, and must not destroy the lane. Thread-safe.
class Lane {
 public:
  explicit Lane(int spin_us = 50);
  // Runs what was posted, then ends. A caller that wants to leave at once aborts the communicator first.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void Post(std::function<void()> work);

 private:
  void Run();
  // True as soon as something was posted after `seen`.
  bool Spin(uint64_t seen) const;

  const int spin_us_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;  // guarded by mutex_
  bool closed_ = false;                      // guarded by mutex_
  bool sleeps_ = false;                      // guarded by mutex_
  std::atomic<uint64_t> news_{0};            // raised under mutex_ when queue_ or closed_ changes
  std::thread thread_;                       // last: it uses the others
};

}  // namespace lockstep
