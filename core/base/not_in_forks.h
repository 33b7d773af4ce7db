#pragma once

#include <vector>

namespace lockstep {

// Keeps sockets of this process out of its forks. A fork with a copy would keep the connection open after this process
// has died, and the peer could not see the death. (Programs that a process executes get no copy, by close on exec.)
// ```cpp
// UniqueFd socket_;
// NotInForks not_in_forks_{{socket_.get()}};  // declared after socket_, because it has to be destroyed first
// ```
// In a fork the descriptors stay valid, so that their owners may close them, but they lead to /dev/null. Negative
// descriptors are ignored. Thread-safe. Forks by clone(2) or vfork(2) are not seen.
class NotInForks {
 public:
  explicit NotInForks(std::vector<int> descriptors);
  ~NotInForks();
  NotInForks(const NotInForks&) = delete;
  NotInForks& operator=(const NotInForks&) = delete;

 private:
  friend struct ForkHandlers;

  const std::vector<int> descriptors_;
};

}  // namespace lockstep
