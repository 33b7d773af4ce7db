#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <optional>

#include "core/base/unique_fd.h"
#include "core/comm/shm/layout.h"

namespace lockstep::shm {

// Detects the deaths of peers. For each peer it holds the two objects that the kernel changes when a process ends in
// any way: a pidfd, and the socket of the connection. The pidfd works even if a child of the peer has inherited the
// socket; the socket works even if the peer is in another process namespace.
//
// The collectives send nothing over the sockets. The sockets stay open so that their closing is seen, and are lent out
// for communication outside of collectives (Communicator::Link). /proc shows whether a peer is stopped (SIGSTOP,
// Ctrl-Z). A peer that runs but hangs is not detected here: deadlines do that (waiter.h).
//
// Owns the descriptors. They close with it, which the peers then see. Thread-compatible: after all peers are added,
// several threads may call Look and IsStopped.
class Peers {
 public:
  // The state of a peer at a moment. It never returns to kAlive.
  enum class Fate {
    kAlive,
    kDied,          // its process ended
    kDisconnected,  // it closed the connection, or its process ended unseen
  };

  // Adds a peer. `pidfd` may be invalid and `pid` 0 if the process cannot be seen. This rank's own entry stays empty.
  void Add(int rank, UniqueFd socket, UniqueFd pidfd, pid_t pid);

  // Returns the peer's state by one system call: do not call it in every turn of a loop. It normally does not wait. But
  // if the connection is closed, it waits up to a second for the process to end, which is the usual reason.
  Fate Look(int rank) const;
  // Returns whether its process is stopped at this moment: state T of its /proc/<pid>/stat. False for a process held by
  // a debugger (state t), because its user is watching it. False also if the state cannot be seen: in another process
  // namespace, or if /proc hides it. One system call.
  bool IsStopped(int rank) const;
  // For messages only: the number may belong to another process by now.
  pid_t pid(int rank) const { return entries_[rank].pid; }
  // Returns the socket of the connection; no value for a rank that was not added. Stays owned.
  std::optional<int> socket(int rank) const { return entries_[rank].socket.borrowed(); }
  // Returns a descriptor that is readable once its process has ended; no value if the process cannot be seen. Stays
  // owned.
  std::optional<int> pidfd(int rank) const { return entries_[rank].pidfd.borrowed(); }

 private:
  // The data of one peer; all descriptors are invalid for this rank itself.
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
