#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace lockstep {

// One thread that runs the collectives of a communicator, one after another in the order in which they were posted.
// Callers (TensorFlow's kernels) post and return at once, so that none of their threads waits for a peer.
//
// Between two pieces of work the thread spins for `spin_us` before it sleeps: work that follows closely is picked up in
// a microsecond or two. Thread-safe.
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

  const int spin_us_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;  // guarded by mutex_
  bool closed_ = false;                      // guarded by mutex_
  std::thread thread_;
};

}  // namespace lockstep
