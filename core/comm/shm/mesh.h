#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/comm/shm/peers.h"

namespace lockstep::shm {

// Returns an error if the awaited ranks cannot come any more, else OK. Called some times per second; may be null.
using Ended = std::function<Status()>;

// The sockets between the ranks of a host: one local socket for each pair. Such a socket can carry file descriptors and
// closes when its process ends. Ranks listen at abstract addresses (no files) that the kernel chooses. Callers prove
// their rank by the key of the rendezvous.
// ```cpp
// LOCKSTEP_ASSIGN_OR_RETURN(Mesh mesh, Mesh::Listen());
// ... tell mesh.name() to the peers, learn theirs (rendezvous/rendezvous.h) ...
// LOCKSTEP_ASSIGN_OR_RETURN(Peers peers, mesh.Join(rank, names, rendezvous.key, deadline));
// ```
// A rank calls all lower ranks and is called by all higher ones, so each pair connects once. It listens before its name
// is published, so a call always succeeds, even if it is answered later.
//
// Any process in the network namespace can see and call abstract addresses, hence the proof. They vanish with the
// socket. Owns the listening socket and closes it; the connections belong to the Peers that Join returns.
// Thread-compatible.
class Mesh {
 public:
  // Opens the listening socket; INTERNAL if the system has no socket left.
  static Result<Mesh> Listen();

  // Returns the name of this process's socket, which the peers need for Join.
  const std::string& name() const { return name_; }

  // Connects to all lower ranks and waits for all higher ones. `names[r]` is the socket of rank r, [R]; only the ranks
  // of this rendezvous know `key`. Returns the first error of `ended`. UNAVAILABLE if a rank cannot be reached (it is
  // gone, or on another host or in another network namespace). DEADLINE_EXCEEDED names the ranks that did not call.
  // Call it once.
  Result<Peers> Join(int rank, const std::vector<std::string>& names, const Digest& key, const Deadline& deadline,
                     const Ended& ended = nullptr);

 private:
  Mesh(UniqueFd listener, std::string name) : listener_(std::move(listener)), name_(std::move(name)) {}

  UniqueFd listener_;
  std::string name_;
};

// SendFd passes the descriptor of the shared memory to rank `to`; ReceiveFd receives it: the same open file with
// another number. Both sides may close theirs afterwards. The message, one for each connection, proves by the key of
// the rendezvous that it comes from rank 0. So a program that listens in place of a dead rank 0 cannot make a rank map
// its memory. UNAVAILABLE if the sender closed without sending, FAILED_PRECONDITION if it does not know the key,
// DEADLINE_EXCEEDED if it takes too long.
Status SendFd(int socket, const UniqueFd& fd, const Digest& key, int to);
Result<UniqueFd> ReceiveFd(int socket, const Digest& key, int to, const Deadline& deadline,
                           const Ended& ended = nullptr);

}  // namespace lockstep::shm
