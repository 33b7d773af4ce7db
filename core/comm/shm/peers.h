#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>

#include "core/base/unique_fd.h"
#include "core/comm/shm/layout.h"

namespace lockstep::shm {

// Sees the deaths of peers. For each it holds the two things that the kernel changes when a process ends, however it
// ends: a pidfd, and the socket over which the ranks met. The pidfd says it even where a child of the peer has
// inherited the socket; the socket says it even where the peer lives in another process namespace. Thread-compatible.
class Peers {
 public:
  enum class Fate {
    kAlive,
    kDied,          // its process ended
    kDisconnected,  // it closed the connection, or its process ended and only that can be seen
  };

  // `pidfd` may be invalid and `pid` 0 where the process can't be seen.
  void Add(int rank, UniqueFd socket, UniqueFd pidfd, pid_t pid);

  Fate Look(int rank) const;
  pid_t pid(int rank) const { return entries_[rank].pid; }
  int socket(int rank) const { return entries_[rank].socket.get(); }

 private:
  struct Entry {
    UniqueFd socket;
    UniqueFd pidfd;
    pid_t pid = 0;
  };
  std::array<Entry, kMaxRanks> entries_;
};

}  // namespace lockstep::shm
