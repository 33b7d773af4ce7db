#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>

#include "core/base/unique_fd.h"
#include "core/comm/shm/layout.h"

namespace lockstep::shm {

// Sees the deaths of peers. For each it holds the two things that the kernel changes when a process ends, however it
// ends: a pidfd, and the socket over which the ranks met. The pidfd says it even where a child of the peer has
// inherited the socket; the socket says it even where the peer lives in another process namespace.
//
// The collectives send nothing over the sockets once the job has begun: they are kept open to be seen closing, and lent
// to who has to say something outside of collectives (Communicator::Link). A peer that was stopped (SIGSTOP, Ctrl-Z)
// shows that in /proc. What is not seen here is a peer that runs and does not move: for that there are deadlines
// (waiter.h).
//
// Owns the descriptors; they close with it, which the peers see in turn. Thread-compatible: Look and IsStopped may be
// called from several threads when all are added.
class Peers {
 public:
  // What is seen of a peer at a moment. It never goes back to kAlive.
  enum class Fate {
    kAlive,
    kDied,          // its process ended
    kDisconnected,  // it closed the connection, or its process ended and only that can be seen
  };

  // `pidfd` may be invalid and `pid` 0 where the process can't be seen. Not for the own rank, whose entry stays empty.
  void Add(int rank, UniqueFd socket, UniqueFd pidfd, pid_t pid);

  // One system call, which does not wait: not for every turn of a loop. But where the connection is closed it waits a
  // second for the process to end, which is most often why.
  Fate Look(int rank) const;
  // Whether its process is stopped at this moment: state T of its /proc/<pid>/stat. False for one that a debugger holds
  // (state t), as whoever does that looks at it, and where the state can't be seen: in another process namespace, or
  // where /proc hides it. One system call.
  bool IsStopped(int rank) const;
  // For messages alone: a number that may belong to another process by now.
  pid_t pid(int rank) const { return entries_[rank].pid; }
  // -1 for a rank that was not added. Stays owned.
  int socket(int rank) const { return entries_[rank].socket.get(); }
  // Readable once its process has ended; -1 where it can't be seen. Stays owned.
  int pidfd(int rank) const { return entries_[rank].pidfd.get(); }

 private:
  // Of one peer; all descriptors are invalid for the own rank.
  struct Entry {
    UniqueFd socket;
    UniqueFd pidfd;
    UniqueFd stat;  // /proc/<pid>/stat
    pid_t pid = 0;
  };
  // By rank.
  std::array<Entry, kMaxRanks> entries_;
};

}  // namespace lockstep::shm
