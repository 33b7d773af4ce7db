#pragma once

#include <optional>
#include <string>

#include "core/base/not_in_forks.h"
#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/comm/liveness/watch_wire.h"

namespace lockstep::watch {

// One connection of a watch: messages in and out, without ever waiting. Owns the socket, and keeps it from forks, which
// would hold it open when this process has died. For one thread.
class Link {
 public:
  // One of `own` and `to`, the ranks at the two ends, is 0.
  Link(const Digest& meeting_key, int own, int to, UniqueFd socket);

  int rank() const { return rank_; }  // at the other end
  // For poll; -1 when closed.
  int socket() const { return socket_.get(); }
  bool open() const { return socket_.valid(); }

  // Takes the message, and sends what the peer's machine takes at once; Flush sends more. Nothing where it is closed.
  void Send(const Message& message);
  void Flush();
  // Whether all that was sent has left this process; and whether the peer's machine has it, or it will get no more.
  bool flushed() const { return output_.empty(); }
  bool Acknowledged() const;

  // The next message; null: nothing more for now. After an error there is nothing more at all: UNAVAILABLE, which says
  // how the connection ended, or DATA_LOSS, where what came is not what the peer sent.
  Result<std::optional<Message>> Receive();

  void Close();

  // Of the watch: when something came, on its clock of silence, and whether the rank has come to its end. Then nothing
  // that it says matters, but it may be told why.
  double heard_s = 0;
  bool over = false;

 private:
  const int rank_;
  UniqueFd socket_;
  std::optional<NotInForks> not_in_forks_;
  Channel sending_, receiving_;
  std::string input_, output_;  // not yet understood, not yet sent
};

}  // namespace lockstep::watch
