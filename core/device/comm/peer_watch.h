#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/named/message_links.h"

namespace lockstep::device {

// Finds out which rank is to blame if a call does not end on the devices.
//
// The kernels of a collective wait for each other without a host, so no host's communicator sees that one of them never
// comes. This class watches the processes of the peers by the links of the host's communicator. It tells them how far
// this rank's device is.
// ```
//   message   bytes after its first one             sent
//   'r'       rank (8), number of a call (8)        when a call lasts: the rank's device has reached it; and in answer
//   'e'       rank (8), code (8), text              once: the rank has given up or aborted
//   'l'       rank (8), number of a call (8), text  the rank leaves, and has ended all calls up to this one
// ```
// On one host there is a link between any two ranks. On several hosts, and with links that a named lane lends, links
// lead to rank 0 only, which passes 'r' and 'l' on to the others. There the host's communicator, or the lane, tells all
// ranks which one is lost or has given up.
//
// All methods but Tell... and Wake are for one thread, the one of progress.h.
class PeerWatch {
 public:
  // pids: the processes of the ranks, [R], for messages. lent: links of a named lane; null: the host's own. All of them
  // outlive this.
  PeerWatch(Communicator& host, std::vector<int64_t> pids, double stall_timeout_s, MessageLinks* lent = nullptr);

  // The oldest call of this rank that has not ended. `reached`: this rank's own data is ready, so it waits for peers.
  struct Waiting {
    int64_t number;  // the same on all ranks
    std::string operation;
    bool reached;
  };
  // Reads what the peers sent. If there is nothing, waits for at most `seconds`; no value: until Wake or a message.
  void Await(std::optional<double> seconds);
  void Wake() { links_->Wake(); }

  // Returns why the oldest call will not end, or OK. To be called some times per second. No value: no call waits, so
  // nothing is wrong. reached: the number of the last call whose data was ready here.
  //   UNAVAILABLE        a peer died, left or is stopped        DEADLINE_EXCEEDED  a peer's device is late
  //   the peer's code    a peer has given up or aborted
  Status Judge(const std::optional<Waiting>& waiting, int64_t reached);

  // Returns whether a peer has said that it gave up or aborted.
  bool is_ended_by_peer() const { return ended_by_peer_.has_value(); }

  // Tell all peers how this rank ended. They send at once, as far as the peers take it. Any thread.
  void TellEnd(const Status& why);
  void TellLeft(std::string_view how, int64_t ended);

  // Sends the rest for at most a second, at the end.
  void Flush();

 private:
  struct Peer {
    std::optional<Deadline> closed;  // set when its link ended
    Status why_closed;
    std::optional<std::string> farewell;
    int64_t ended = 0;  // the last call that it has ended, if it has left
    int64_t reached = 0;
    int64_t told = 0;  // the last number that it got from this rank
  };
  void Handle(const MessageLinks::Event& event);
  void TellReached(int rank, int64_t reached);
  // Reads a message of `origin`, which came over the link to `from`. Returns whether it can be read.
  bool Read(int from, char kind, std::string_view rest);
  // The parts of Judge: each looks for one reason.
  Status JudgeHost(const Waiting& waiting);
  Status JudgeGone(const Waiting& waiting);
  Status JudgeLate(const Waiting& waiting) const;

  Communicator& host_;
  const std::vector<int64_t> pids_;
  const double stall_timeout_s_;
  const std::unique_ptr<MessageLinks> own_links_;  // null if they are lent
  MessageLinks* const links_;
  const bool leads_to_rank_0_;  // no links lead to others
  std::vector<Peer> peers_;     // [R]
  std::optional<Status> ended_by_peer_;
  int64_t reached_ = 0;
  // The oldest call, and when it was first seen to wait for peers.
  int64_t waiting_for_ = 0;
  std::optional<Deadline> since_;
  std::optional<Deadline> next_look_;  // for stopped processes
};

}  // namespace lockstep::device
