#include "core/comm/shm/peers.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/strings.h"

namespace lockstep::shm {
namespace {

// The time from the closing of a process's sockets to its end, on a busy machine.
constexpr int kEnding_ms = 1000;

// Opens /proc/<pid>/stat of a process; invalid if it cannot be seen. /proc may belong to another process namespace: the
// pidfd's own entry gives the number there, 0 or -1 if it has none.
UniqueFd OpenStat(const UniqueFd& pidfd) {
  constexpr std::string_view kPid = "Pid:";
  if (!pidfd.valid()) return {};
  std::ifstream info(StrCat("/proc/self/fdinfo/", pidfd.get()));
  std::string line;
  while (std::getline(info, line)) {
    if (!line.starts_with(kPid)) continue;
    const std::string path = StrCat("/proc/", std::atol(line.c_str() + kPid.size()), "/stat");
    return UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  }
  return {};
}

}  // namespace

void Peers::Add(int rank, UniqueFd socket, UniqueFd pidfd, pid_t pid) {
  UniqueFd stat = OpenStat(pidfd);
  entries_[rank] = Entry{std::move(socket), std::move(pidfd), std::move(stat), pid};
}

// "123 (name) T ...": the name may contain any characters. The open file belongs to this process only, even if its
// number is reused: after its end there is nothing to read.
bool Peers::IsStopped(int rank) const {
  char buffer[128];
  const ssize_t got = pread(entries_[rank].stat.get(), buffer, sizeof(buffer), 0);
  if (got <= 0) return false;
  const std::string_view text(buffer, static_cast<size_t>(got));
  const size_t name_end = text.rfind(')');
  return name_end != std::string_view::npos && text.substr(name_end).starts_with(") T");
}

Peers::Fate Peers::Look(int rank) const {
  const Entry& entry = entries_[rank];
  // poll ignores a missing pidfd. A pidfd becomes readable when its process has ended, whether or not its parent
  // has reaped it. POLLRDHUP: the other end is closed, whether or not unread data is left.
  pollfd fds[2] = {{entry.pidfd.get(), POLLIN, 0}, {entry.socket.get(), POLLRDHUP, 0}};
  if (poll(fds, 2, 0) <= 0) return Fate::kAlive;
  // An ending process closes its sockets, then frees its memory, and only then has ended.
  if (fds[0].revents == 0 && entry.pidfd.valid()) (void)poll(fds, 1, kEnding_ms);
  return fds[0].revents != 0 ? Fate::kDied : Fate::kDisconnected;
}

}  // namespace lockstep::shm
