#pragma once

#include <vector>

namespace lockstep {

// Keeps sockets of this process out of those forked from it (which run on without another program: what is executed
// keeps none anyway, by close on exec). A fork that held a copy would keep the connection open after this process has
// died, and its peer could not see the death.
//
//   UniqueFd socket_;
//   NotInForks not_in_forks_{{socket_.get()}};  // behind what it names: it has to go first
//
// In a fork the descriptors are there and valid, so that whoever owns them may close them, but lead nowhere
// (/dev/null). Negative descriptors are ignored. Thread-safe; forks by clone(2) or vfork(2) are not seen.
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
