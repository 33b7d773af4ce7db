#include "core/comm/shm/peers.h"

#include <poll.h>

#include <utility>

namespace lockstep::shm {
namespace {

// From a process' closed sockets to its end, on a machine with other things to do.
constexpr int kEnding_ms = 1000;

}  // namespace

void Peers::Add(int rank, UniqueFd socket, UniqueFd pidfd, pid_t pid) {
  entries_[rank] = Entry{std::move(socket), std::move(pidfd), pid};
}

Peers::Fate Peers::Look(int rank) const {
  const Entry& entry = entries_[rank];
  // poll leaves out what has a negative descriptor. A pidfd becomes readable when its process has ended, whether or not
  // its parent has reaped it. POLLRDHUP: the other end is closed, whether or not data wait to be read.
  pollfd fds[2] = {{entry.pidfd.get(), POLLIN, 0}, {entry.socket.get(), POLLRDHUP, 0}};
  if (poll(fds, 2, 0) <= 0) return Fate::kAlive;
  // A process that ends closes its sockets, then gives back its memory, and then only has ended.
  if (fds[0].revents == 0 && fds[0].fd >= 0) (void)poll(fds, 1, kEnding_ms);
  return fds[0].revents != 0 ? Fate::kDied : Fate::kDisconnected;
}

}  // namespace lockstep::shm
