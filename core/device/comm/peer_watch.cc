#include "core/device/comm/peer_watch.h"

#include <algorithm>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/strings.h"
#include "core/comm/named/control_links.h"

namespace lockstep::device {
namespace {

constexpr char kReached = 'r', kEnded = 'e', kLeft = 'l';
// How long a call may still need for data that a lost rank has sent.
constexpr double kGrace_s = 0.25;
// A call that lasts so long is worth a message to the peers.
constexpr double kLasting_s = 0.1;
// Stopped processes are looked for so often.
constexpr double kLookForStops_s = 0.2;
constexpr size_t kMostTextBytes = 2048;

std::vector<std::optional<int>> Descriptors(const Communicator& host, bool deaths) {
  std::vector<std::optional<int>> all;
  for (int rank = 0; rank < host.size(); ++rank) {
    const bool self = rank == host.rank();
    all.push_back(self ? std::nullopt : deaths ? host.DeathFd(rank) : host.Link(rank));
  }
  return all;
}

std::vector<std::optional<Digest>> Keys(const Communicator& host) {
  std::vector<std::optional<Digest>> keys;
  for (int rank = 0; rank < host.size(); ++rank) {
    keys.push_back(rank == host.rank() ? std::nullopt : host.LinkKey(rank));
  }
  return keys;
}

std::string Message(char kind, int rank, int64_t number, std::string_view text) {
  ByteWriter writer;
  writer.Number(int64_t{rank});
  writer.Number(number);
  writer.String(text.substr(0, kMostTextBytes));
  return kind + writer.Take();
}

}  // namespace

PeerWatch::PeerWatch(Communicator& host, std::vector<int64_t> pids, double stall_timeout_s, MessageLinks* lent)
    : host_(host),
      pids_(std::move(pids)),
      stall_timeout_s_(stall_timeout_s),
      own_links_(lent != nullptr ? nullptr
                                 : std::make_unique<ControlLinks>(Descriptors(host, false), Descriptors(host, true),
                                                                  Keys(host), host.rank())),
      links_(lent != nullptr ? lent : own_links_.get()),
      leads_to_rank_0_(lent != nullptr || host.num_hosts() > 1),
      peers_(host.size()) {}

void PeerWatch::Await(std::optional<double> seconds) {
  for (const MessageLinks::Event& event : links_->Await(seconds)) Handle(event);
}

// A message that cannot be read ends the job, like data that a rank did not send.
void PeerWatch::Handle(const MessageLinks::Event& event) {
  if (event.closed) {
    peers_[event.rank].closed = Deadline::After(kGrace_s);
    peers_[event.rank].why_closed = event.why;
    return;
  }
  const std::string_view message = event.message;
  if (!message.empty() && Read(event.rank, message.front(), message.substr(1))) return;
  ended_by_peer_ = DataLoss(StrCat("rank ", event.rank, " sent a message on its link that cannot be read"));
}

// Only rank 0 speaks for others.
bool PeerWatch::Read(int from, char kind, std::string_view rest) {
  ByteReader reader(rest);
  const auto origin = reader.Number<int64_t>();
  const auto number = reader.Number<int64_t>();
  std::string text = reader.String();
  if (!reader.Complete() || origin < 0 || origin >= host_.size() || (origin != from && from != 0)) return false;
  Peer& peer = peers_[origin];
  if (kind == kReached) {
    peer.reached = std::max(peer.reached, number);
    TellReached(from, reached_);
  } else if (kind == kLeft) {
    peer.ended = number;
    peer.farewell = std::move(text);
  } else {
    if (kind != kEnded || number <= 0 || number > static_cast<int64_t>(StatusCode::kDataLoss)) return false;
    if (!ended_by_peer_) ended_by_peer_ = Status(static_cast<StatusCode>(number), std::move(text));
    return true;
  }
  if (host_.rank() == 0 && leads_to_rank_0_) {
    for (int rank = 1; rank < host_.size(); ++rank) {
      if (rank != origin) links_->Send(rank, kind + std::string(rest));
    }
  }
  return true;
}

void PeerWatch::TellReached(int rank, int64_t reached) {
  if (rank == host_.rank() || reached <= peers_[rank].told) return;
  peers_[rank].told = reached;
  links_->Send(rank, Message(kReached, host_.rank(), reached, ""));
}

void PeerWatch::TellEnd(const Status& why) {
  const std::string message = Message(kEnded, host_.rank(), static_cast<int64_t>(why.code()), why.message());
  for (int rank = 0; rank < host_.size(); ++rank) links_->Send(rank, message);
}

void PeerWatch::TellLeft(std::string_view how, int64_t ended) {
  const std::string message = Message(kLeft, host_.rank(), ended, how);
  for (int rank = 0; rank < host_.size(); ++rank) links_->Send(rank, message);
}

void PeerWatch::Flush() {
  constexpr double kFarewell_s = 1;
  (void)links_->Push(kFarewell_s);  // a peer that takes no more learns of the end by its link
}

Status PeerWatch::Judge(const std::optional<Waiting>& waiting, int64_t reached) {
  reached_ = reached;
  // Without a call on the device, the host's next collective reports the end, with its own name.
  if (ended_by_peer_ && waiting) {
    return Status(ended_by_peer_->code(), StrCat("rank ", host_.rank(), ": ", waiting->operation, " ended, because ",
                                                 ended_by_peer_->message()));
  }
  if (!waiting) {
    since_.reset();
    return OkStatus();
  }
  if (waiting_for_ != waiting->number) {
    waiting_for_ = waiting->number;
    since_.reset();
  }
  if (!waiting->reached) return OkStatus();
  if (!since_) since_ = Deadline::After(stall_timeout_s_);
  if (since_->Elapsed() < kLasting_s) return OkStatus();
  for (int rank = 0; rank < host_.size(); ++rank) TellReached(rank, reached);
  LOCKSTEP_RETURN_IF_ERROR(JudgeGone(*waiting));
  LOCKSTEP_RETURN_IF_ERROR(JudgeHost(*waiting));
  if (!next_look_ || next_look_->Passed()) {
    next_look_ = Deadline::After(kLookForStops_s);
    const Status stopped = host_.StoppedPeer();
    if (!stopped.ok()) {
      return Status(stopped.code(), StrCat("rank ", host_.rank(), ": ", stopped.message(), " while rank ", host_.rank(),
                                           " waited for it in ", waiting->operation));
    }
  }
  return since_->Passed() ? JudgeLate(*waiting) : OkStatus();
}

// A rank that left after it had ended the call disturbs nobody. A dead rank has not told it, so the call gets the
// time that its data may need.
Status PeerWatch::JudgeGone(const Waiting& waiting) {
  if (since_->Elapsed() < kGrace_s) return OkStatus();
  for (int rank = 0; rank < host_.size(); ++rank) {
    const Peer& peer = peers_[rank];
    if (peer.farewell && waiting.number > 0 && peer.ended >= waiting.number) continue;
    const std::string waited = StrCat(" while rank ", host_.rank(), " waited for it in ", waiting.operation);
    if (peer.farewell) {
      return Unavailable(
          StrCat("rank ", host_.rank(), ": rank ", rank, " left the job", waited, Behind(": ", *peer.farewell)));
    }
    if (!peer.closed || !peer.closed->Passed()) continue;
    Status why = peer.why_closed.ok() ? host_.WhyLinkEnded(rank) : peer.why_closed;
    if (!why.ok()) {
      return Status(why.code(),
                    StrCat("rank ", host_.rank(), ": ", waiting.operation, " ended, because ", why.message()));
    }
    return Unavailable(StrCat("rank ", host_.rank(), ": rank ", rank, " (process ", pids_[rank], ") died", waited));
  }
  return OkStatus();
}

// The watch of several hosts has ended the host's communicator. An end for another reason is reported by the call of
// the host that has caused it.
Status PeerWatch::JudgeHost(const Waiting& waiting) {
  if (host_.size() == 1 || !host_.broken()) return OkStatus();
  const Status why = host_.WhyLinkEnded(host_.rank() == 0 ? 1 : 0);
  if (why.ok()) return OkStatus();
  return Status(why.code(), StrCat("rank ", host_.rank(), ": ", waiting.operation, " ended, because ", why.message()));
}

Status PeerWatch::JudgeLate(const Waiting& waiting) const {
  std::vector<int> late;
  for (int rank = 0; rank < host_.size(); ++rank) {
    if (rank != host_.rank() && peers_[rank].reached < waiting.number) late.push_back(rank);
  }
  if (waiting.number == 0) {
    return DeadlineExceeded(StrCat("rank ", host_.rank(), ": the ranks' devices have not connected for ",
                                   stall_timeout_s_, " s in ", waiting.operation));
  }
  if (late.empty()) {
    return DeadlineExceeded(StrCat("rank ", host_.rank(), ": the devices of all ranks have begun ", waiting.operation,
                                   ", but it has not ended for ", stall_timeout_s_, " s"));
  }
  return DeadlineExceeded(StrCat("rank ", host_.rank(), ": nothing from the ",
                                 late.size() == 1 ? "device of rank " : "devices of ranks ", JoinWithAnd(late), " for ",
                                 stall_timeout_s_, " s in ", waiting.operation));
}

}  // namespace lockstep::device
