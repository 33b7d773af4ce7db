#pragma once

#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/comm/shm/peers.h"

namespace lockstep::shm {

// The sockets between the ranks of a host: one for each pair, of the local kind, which can carry file descriptors and
// closes when its process ends. They listen at abstract addresses (no files) that the kernel picks; callers prove with
// the key of the meeting which rank they are.
//
// Usage: Listen, tell the name to the peers, Join. Thread-compatible.
class Mesh {
 public:
  static Result<Mesh> Listen();

  // Where this process listens, as the peers need it for Join.
  const std::string& name() const { return name_; }

  // Connects to all lower ranks and waits for all higher ones. `names[r]` is where rank r listens.
  Result<Peers> Join(int rank, const std::vector<std::string>& names, const Digest& key, const Deadline& deadline);

 private:
  Mesh(UniqueFd listener, std::string name) : listener_(std::move(listener)), name_(std::move(name)) {}

  UniqueFd listener_;
  std::string name_;
};

// Hands a descriptor to a peer, and takes one from it.
Status SendFd(int socket, const UniqueFd& fd);
Result<UniqueFd> ReceiveFd(int socket, const Deadline& deadline);

}  // namespace lockstep::shm
