#pragma once

#include <optional>
#include <string>

#include "core/base/not_in_forks.h"
#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/comm/liveness/watch_wire.h"

namespace lockstep::watch {

// One connection of a watch: sends and receives messages without ever waiting. Owns the socket, and keeps it from
// forks, which would hold it open after this process has died. For one thread.
class Link {
 public:
  // `own` and `to` are the ranks at the two ends; one of them is 0.
  Link(const Digest& meeting_key, int own, int to, UniqueFd socket);

  int rank() const { return rank_; }  // the rank at the other end
  // Returns the socket, for poll; no value when closed.
  std::optional<int> socket() const { return socket_.borrowed(); }
  bool open() const { return socket_.valid(); }

  // Takes the message, and sends as much as the peer's machine accepts at once; Flush sends more. No effect when
  // closed.
  void Send(const Message& message);
  void Flush();
  // flushed returns whether all data has left this process. Acknowledged returns whether the peer's machine has it, or
  // will get no more.
  bool flushed() const { return output_.empty(); }
  bool Acknowledged() const;

  // Returns the next message; no value means that there is none yet. No message follows an error: UNAVAILABLE tells how
  // the connection ended, DATA_LOSS means that the peer did not send this data.
  Result<std::optional<Message>> Receive();

  void Close();

  // Used by the watch: the time of the last input, on its clock of silence, and whether the rank has ended. Then its
  // messages do not matter, but it may be sent the reason.
  double heard_s = 0;
  bool over = false;

 private:
  const int rank_;
  UniqueFd socket_;
  std::optional<NotInForks> not_in_forks_;
  Channel sending_, receiving_;
  std::string input_, output_;  // not yet parsed, not yet sent
};

}  // namespace lockstep::watch
