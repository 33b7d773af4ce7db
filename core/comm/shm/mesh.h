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

// Whether those one waits for cannot come any more: OK, or why not. Asked some times a second; null is never.
using Ended = std::function<Status()>;

// The sockets between the ranks of a host: one for each pair, of the local kind, which can carry file descriptors and
// closes when its process ends. They listen at abstract addresses (no files) that the kernel picks; callers prove with
// the key of the meeting which rank they are.
//
//   LOCKSTEP_ASSIGN_OR_RETURN(Mesh mesh, Mesh::Listen());
//   ... tell mesh.name() to the peers, learn theirs (rendezvous/rendezvous.h) ...
//   LOCKSTEP_ASSIGN_OR_RETURN(Peers peers, mesh.Join(rank, names, meeting.key, deadline));
//
// A rank calls all lower ranks and is called by all higher ones, so that each pair meets once. It listens before its
// name is known to anybody, so a call finds somebody, even if it is answered later.
//
// Abstract addresses can be seen and called by any process in the network namespace; hence the proof. They are gone
// with the socket. Owns the listening socket and closes it; the connections belong to the Peers that Join returns.
// Thread-compatible.
class Mesh {
 public:
  // INTERNAL where the system has no socket left.
  static Result<Mesh> Listen();

  // Where this process listens, as the peers need it for Join.
  const std::string& name() const { return name_; }

  // Connects to all lower ranks and waits for all higher ones. `names[r]` is where rank r listens, [R]; `key` is known
  // to the ranks of this meeting alone. What `ended` says, if that is not OK, is returned. UNAVAILABLE where a rank
  // can't be reached (it is gone, or lives on another host or in another network namespace); DEADLINE_EXCEEDED that
  // names the ranks that did not call. To be called once.
  Result<Peers> Join(int rank, const std::vector<std::string>& names, const Digest& key, const Deadline& deadline,
                     const Ended& ended = nullptr);

 private:
  Mesh(UniqueFd listener, std::string name) : listener_(std::move(listener)), name_(std::move(name)) {}

  UniqueFd listener_;
  std::string name_;
};

// Hands the descriptor of the shared memory to rank `to`, which takes it: the same open file, under another number.
// Both may close theirs afterwards. Its message, one for each connection, proves with the key of the meeting that it is
// from rank 0: whoever listens where that has listened, after its end, has no memory that a rank would map. UNAVAILABLE
// where the sender closed without sending, FAILED_PRECONDITION where it does not know the key, DEADLINE_EXCEEDED where
// it takes too long.
Status SendFd(int socket, const UniqueFd& fd, const Digest& key, int to);
Result<UniqueFd> ReceiveFd(int socket, const Digest& key, int to, const Deadline& deadline,
                           const Ended& ended = nullptr);

}  // namespace lockstep::shm
