#include "core/comm/rendezvous/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <thread>

#include "core/base/bytes.h"
#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/rendezvous/network_addresses.h"
#include "core/comm/rendezvous/rendezvous_wire.h"

// The host (rank 0) serves all connections in one loop around poll, so that none of them can delay another. A
// connection has three stages: the host awaits its proof, the host awaits its hello, and then it is a rank that waits
// for the others.
//
// The power of an unauthenticated peer is limited. It costs the host one descriptor of MaxUnproven, for at most
// kHandshakeTimeout_s, a buffer of a few KiB, and the computation of some digests. Before its proof has been accepted,
// it gets no answer except the banner and the refusal. The host sends to guests without waiting, or with a deadline, so
// that no guest can stop the loop by not reading.

namespace lockstep {
namespace {

using wire::Direction;

// Unauthenticated peers must not exhaust our descriptors: beyond this many connections without a proof, the oldest is
// closed. It is enough for the guests of a job of `size`, even if all come at once. A guest that is still closed out
// connects again.
size_t MaxUnproven(int size) { return std::max<size_t>(64, size); }
// A connection that has not sent its hello by then is closed.
constexpr double kHandshakeTimeout_s = 10;
// The time from rank 0's deadline until its guests have its report.
constexpr double kReport_s = 1.5;
// A rank that came and left is awaited for a shorter time than one that never came: enough for a process that is
// restarted at once.
constexpr double kReturn_s = 5;

// It is made from a nonce of the host that only the answer contains. So each rendezvous has another key, even if the
// same secret is used again.
Digest RendezvousKey(std::string_view secret, std::string_view nonce) {
  return HmacSha256(secret, StrCat("lockstep meeting:", nonce));
}

// The address of a socket's own end, and of the other end; "" if it is no longer connected.
std::string LocalAddress(int socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  const bool known = getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  return known ? NumericAddress(address) : "";
}

std::string PeerAddress(int socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  const bool known = getpeername(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  return known ? NumericAddress(address) : "";
}

// A guest, or an unauthenticated peer, as the host sees it. Its stage: `proven` is false, then true, then `hello` is
// set.
struct Connection {
  UniqueFd socket;
  std::string address;  // where it came from
  Deadline deadline = Deadline::After(kHandshakeTimeout_s);
  std::string host_nonce;
  bool proven = false;
  wire::Keys keys = {};
  // Bytes that were received and are not parsed yet.
  std::string input;
  std::optional<wire::Hello> hello;
};

// A rank that waited here and left: its hello, and the time until which it may come again.
struct DepartedRank {
  wire::Hello hello;
  Deadline back;
};

// Rank 0. The rendezvous is complete when each rank from 1 on has a connection with its hello. The connections stay
// open until the answer is sent, so that the host notices if a guest leaves while it waits. All in one thread.
class Host {
 public:
  explicit Host(const RendezvousOptions& options) : options_(options), deadline_(Deadline::After(options.timeout_s)) {}
  // A fork of the process may have a copy of the listener for a moment, which would block the port for the next
  // rendezvous.
  ~Host() {
    if (!options_.listener && listener_.valid()) shutdown(listener_.get(), SHUT_RDWR);
  }

  Result<RendezvousResult> Run() {
    const std::string& where = options_.listen.empty() ? options_.address : options_.listen;
    LOCKSTEP_ASSIGN_OR_RETURN(listener_, options_.listener ? Borrow(*options_.listener) : wire::Listen(where));
    while (!MissingRanks().empty()) {
      if (options_.ended) LOCKSTEP_RETURN_IF_ERROR(options_.ended());
      Status status = deadline_.Passed() ? Late() : ServeOnce();
      if (status.ok()) status = CheckReturned();
      if (!status.ok()) {
        (void)Tell({status, "", {}, {}});  // ranks that are gone need not know
        return status;
      }
    }
    LOCKSTEP_ASSIGN_OR_RETURN(std::string nonce, wire::MakeNonce());
    const size_t size = options_.size;
    wire::Answer answer = {OkStatus(), std::move(nonce), std::vector<std::string>(size),
                           std::vector<std::string>(size)};
    answer.notes[0] = options_.note;
    // A connection without a hello belongs to an unauthenticated peer and gets nothing.
    for (const Connection& guest : connections_) {
      if (!guest.hello) continue;
      answer.notes[guest.hello->rank] = guest.hello->note;
      answer.addresses[guest.hello->rank] = guest.address;
    }
    if (const size_t bytes = wire::Encode(answer).size(); bytes > wire::kMaxAnswerBytes) {
      const Status status = InvalidArgument(StrCat("rendezvous: the notes of all ", size, " ranks are ", bytes,
                                                   " bytes, at most ", wire::kMaxAnswerBytes));
      (void)Tell({status, "", {}, {}});  // ranks that are gone need not know
      return status;
    }
    LOCKSTEP_RETURN_IF_ERROR(Tell(answer));
    return BuildResult(std::move(answer));
  }

 private:
  RendezvousResult BuildResult(wire::Answer answer) {
    RendezvousResult result = {.notes = std::move(answer.notes),
                               .key = RendezvousKey(options_.secret, answer.nonce),
                               .addresses = std::move(answer.addresses)};
    if (const Connection* first = FindRank(1)) result.own_address = LocalAddress(first->socket.get());
    result.addresses[0] = result.own_address;
    if (!options_.keep_connections) return result;
    result.connections.resize(options_.size);
    for (Connection& guest : connections_) {
      if (guest.hello) result.connections[guest.hello->rank] = std::move(guest.socket);
    }
    return result;
  }

  // Uses the caller's listener; it does not block without callers.
  static Result<UniqueFd> Borrow(int listener) {
    UniqueFd own(fcntl(listener, F_DUPFD_CLOEXEC, 0));
    if (!own.valid() || fcntl(own.get(), F_SETFL, O_NONBLOCK) != 0) {
      return ErrnoStatus(StrCat("rendezvous: the listener ", listener), errno);
    }
    return own;
  }

  std::vector<int> MissingRanks() const {
    std::vector<int> missing;
    for (int rank = 1; rank < options_.size; ++rank) {
      if (FindRank(rank) == nullptr) missing.push_back(rank);
    }
    return missing;
  }

  const Connection* FindRank(int rank) const {
    for (const Connection& guest : connections_) {
      if (guest.hello && static_cast<int>(guest.hello->rank) == rank) return &guest;
    }
    return nullptr;
  }

  Status Late() const {
    const std::vector<int> missing = MissingRanks();
    return DeadlineExceeded(StrCat(missing.size() == 1 ? "rank " : "ranks ", JoinWithAnd(missing), " of ",
                                   options_.size, " did not come to the rendezvous at '", options_.address, "' within ",
                                   options_.timeout_s, " s", DescribeMissing(missing)));
  }

  // An error if a rank has been away for too long. It names all ranks that are away, because a host that died has
  // several.
  Status CheckReturned() const {
    std::vector<int> away;
    bool too_long = false;
    for (const int rank : MissingRanks()) {
      const auto left = departed_.find(rank);
      if (left == departed_.end()) continue;
      away.push_back(rank);
      too_long = too_long || left->second.back.Passed();
    }
    if (!too_long) return OkStatus();
    return Unavailable(StrCat(away.size() == 1 ? "rank " : "ranks ", JoinWithAnd(away), " of ", options_.size,
                              " went away from the rendezvous at '", options_.address,
                              "' and did not come back within ", kReturn_s, " s", DescribeMissing(away)));
  }

  // The known facts about them: they may have been here, or in another rendezvous.
  std::string DescribeMissing(const std::vector<int>& missing) const {
    std::string text;
    for (const int rank : missing) {
      const auto left = departed_.find(rank);
      const bool came = left != departed_.end();
      const std::string name = options_.name ? options_.name(rank, came ? left->second.hello.note : "") : "";
      if (came) {
        text += StrCat("; ", name.empty() ? StrCat("rank ", rank, " (process ", left->second.hello.pid, ")") : name,
                       " came, then died or gave up");
      } else if (!name.empty()) {
        text += StrCat("; ", name, " is still on its way");
      }
    }
    return text;
  }

  // Sends the result to all ranks that are here. Returns the first failure, after it has sent the result to all. (If
  // the answer was good but one guest did not get it, the others assume that the job begins, but rank 0 has given up.
  // They notice this as soon as they try to reach rank 0.)
  Status Tell(const wire::Answer& answer) {
    const std::string body = wire::Encode(answer);
    const Digest digest = Sha256(body);
    ByteWriter writer;
    writer.String(body);
    const std::string message = writer.Take();
    Status first;
    for (Connection& guest : connections_) {
      if (!guest.hello) continue;
      // A frame; all of it except the tag is the same for all guests.
      const Digest tag = wire::MakeTag(guest.keys.frames, Direction::kToGuest, digest);
      const Deadline deadline = Deadline::After(kHandshakeTimeout_s);
      Status status = wire::SendAll(guest.socket.get(), message, deadline);
      if (status.ok()) status = wire::SendAll(guest.socket.get(), AsBytes(tag), deadline);
      if (!status.ok() && first.ok()) first = status.WithPrefix(StrCat("rank ", guest.hello->rank, ": "));
    }
    return first;
  }

  // Waits for an event and handles it. An error ends the rendezvous. New connections are accepted last, because
  // entries[i] belongs to the i-th connection only until there is a new one.
  Status ServeOnce() {
    std::vector<pollfd> entries = {{listener_.get(), POLLIN, 0}};
    for (const Connection& connection : connections_) entries.push_back({connection.socket.get(), POLLIN, 0});
    // Wakes at least once a second, to close silent connections and to notice ranks that have left for too long.
    if (poll(entries.data(), entries.size(), deadline_.PollMs(options_.ended ? 0.1 : 1)) < 0 && errno != EINTR) {
      return ErrnoStatus("rendezvous: poll", errno);
    }
    size_t i = 1;
    for (auto it = connections_.begin(); it != connections_.end(); ++i) {
      bool keep = it->hello.has_value() || !it->deadline.Passed();
      if (keep && entries[i].revents != 0) {
        LOCKSTEP_ASSIGN_OR_RETURN(keep, Read(*it));
      }
      if (!keep && it->hello) {
        departed_.insert_or_assign(static_cast<int>(it->hello->rank),
                                   DepartedRank{*it->hello, Deadline::After(kReturn_s)});
      }
      it = keep ? std::next(it) : connections_.erase(it);
    }
    return entries[0].revents != 0 ? Welcome() : OkStatus();
  }

  // Greets the new callers: a limited number, so that the deadline is checked however many there are.
  Status Welcome() {
    for (UniqueFd& caller : wire::AcceptCallers(listener_.get())) {
      Connection connection;
      connection.socket = std::move(caller);
      connection.address = PeerAddress(connection.socket.get());
      LOCKSTEP_ASSIGN_OR_RETURN(connection.host_nonce, wire::MakeNonce());
      std::string banner(wire::kMagic);
      for (int i = 0; i < 4; ++i) banner += static_cast<char>(wire::kVersion >> (8 * i));
      banner += connection.host_nonce;
      // An empty socket buffer takes these few bytes at once. A caller whose buffer does not take them is disconnected.
      if (!wire::SendAll(connection.socket.get(), banner, Deadline::After(0)).ok()) continue;
      const auto unproven = [](const Connection& c) { return !c.proven; };
      if (static_cast<size_t>(std::count_if(connections_.begin(), connections_.end(), unproven)) >=
          MaxUnproven(options_.size)) {
        connections_.erase(std::find_if(connections_.begin(), connections_.end(), unproven));
      }
      connections_.push_back(std::move(connection));
    }
    return OkStatus();
  }

  // Reads what a connection sent. False: the connection is of no more use. An error ends the rendezvous.
  Result<bool> Read(Connection& connection) {
    char buffer[4096];
    while (true) {
      const ssize_t got = recv(connection.socket.get(), buffer, sizeof(buffer), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return true;
      // Closed, or sent more after its hello. A rank that leaves is missing again.
      if (got <= 0 || connection.hello) return false;
      connection.input.append(buffer, static_cast<size_t>(got));
      if (!connection.proven && connection.input.size() >= wire::kProofBytes && !CheckProof(connection)) return false;
      if (!connection.proven) {
        if (connection.input.size() >= wire::kMagic.size() && !connection.input.starts_with(wire::kMagic)) return false;
        continue;
      }
      auto body = wire::ParseFrame(connection.keys.frames, Direction::kToHost, connection.input);
      if (!body.ok()) return false;
      if (!body->has_value()) continue;
      const std::optional<wire::Hello> hello = wire::DecodeHello(**body);
      if (!hello) return false;
      return Admit(connection, *hello);
    }
  }

  // The guest's proof covers the host's nonce. Therefore it is valid only for this connection: a recorded one is
  // worthless. False: disconnect.
  bool CheckProof(Connection& connection) {
    const std::string_view input = connection.input;
    if (!input.starts_with(wire::kMagic)) return false;
    const std::string_view nonce = input.substr(wire::kMagic.size(), wire::kNonceBytes);
    connection.keys = wire::MakeKeys(options_.secret, connection.host_nonce, nonce);
    Digest proof;
    std::memcpy(proof.data(), input.data() + wire::kMagic.size() + wire::kNonceBytes, wire::kTagBytes);
    connection.proven = SameDigest(proof, connection.keys.guest_proof);
    connection.input.erase(0, wire::kProofBytes);
    std::string verdict(1, connection.proven ? wire::kWelcome : wire::kRefused);
    // Our own proof goes only to guests that have given theirs.
    verdict += connection.proven ? AsBytes(connection.keys.host_proof) : std::string_view();
    verdict.resize(wire::kVerdictBytes);
    return wire::SendAll(connection.socket.get(), verdict, Deadline::After(0)).ok() && connection.proven;
  }

  // Checks the hello of a process that knows the secret. False: it cannot take part. An error: the job cannot start.
  Result<bool> Admit(Connection& connection, const wire::Hello& hello) {
    const auto refuse = [&](const Status& why) {
      const std::string frame =
          wire::MakeFrame(connection.keys.frames, Direction::kToGuest, wire::Encode(wire::Answer{why, "", {}, {}}));
      (void)wire::SendAll(connection.socket.get(), frame, Deadline::After(0));  // it may be gone: nothing is lost
      return why;
    };
    if (hello.size != static_cast<uint32_t>(options_.size)) {
      return refuse(FailedPrecondition(StrCat("rank ", hello.rank, " was started for a job of ", hello.size,
                                              " ranks, rank 0 for one of ", options_.size)));
    }
    if (hello.rank == 0 || hello.rank >= hello.size || hello.note.size() > kMaxNoteBytes) {
      (void)refuse(
          FailedPrecondition(StrCat("process ", hello.pid, " came to the rendezvous as rank ", hello.rank,
                                    "; rank 0 is process ", getpid(), ", the others are 1 to ", hello.size - 1)));
      return false;
    }
    if (const Connection* other = FindRank(static_cast<int>(hello.rank))) {
      (void)refuse(FailedPrecondition(StrCat("two processes claim rank ", hello.rank, ": process ", hello.pid,
                                             " came after process ", other->hello->pid)));
      return false;
    }
    connection.hello = hello;
    return true;
  }

  // Outlives the host, which lives during JoinRendezvous.
  const RendezvousOptions& options_;
  const Deadline deadline_;
  UniqueFd listener_;
  std::list<Connection> connections_;
  std::map<int, DepartedRank> departed_;  // by rank: those that waited here and left, the last time of each
};

// A rank other than 0: one conversation, step by step, on a socket with a deadline. It begins again if the connection
// ends before the verdict.
class Guest {
 public:
  explicit Guest(const RendezvousOptions& options) : options_(options), deadline_(Deadline::After(options.timeout_s)) {}

  Result<RendezvousResult> Run() {
    Result<RendezvousResult> result = Unavailable("not connected");
    do {
      // A caller that watches rank 0 by other means knows better.
      const bool went = peer_seen_ && !options_.ended;
      const Deadline patience = Deadline::After(went ? std::min(kReturn_s, deadline_.Left()) : deadline_.Left());
      Result<UniqueFd> socket = wire::Connect(options_.address, patience, "rank 0", options_.ended);
      if (socket.status().code() == StatusCode::kDeadlineExceeded) {
        const Status status =
            went ? Unavailable(StrCat(socket.status().message(), "; it was there, then died or gave up"))
                 : socket.status();
        return status.WithPrefix(StrCat("rank ", options_.rank, ": rendezvous: "));
      }
      LOCKSTEP_ASSIGN_OR_RETURN(socket_, std::move(socket));
      result = Talk();
      if (result.ok()) return result;
      if (options_.ended) LOCKSTEP_RETURN_IF_ERROR(options_.ended());
      // The host closes connections that have not proven themselves; among many, it may have taken ours for one of
      // these. After the welcome, a closed connection means that the host is gone.
      if (welcome_ || result.status().code() != StatusCode::kUnavailable) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    } while (!deadline_.Passed());
    // The host's answer speaks for the job; an error of the connection concerns this rank only.
    if (answered_) return result;
    return result.status().WithPrefix(
        StrCat("rank ", options_.rank, ": rendezvous with rank 0 at '", options_.address, "': "));
  }

 private:
  // The version is checked before any proof: another version may prove in another way.
  Result<RendezvousResult> Talk() {
    LOCKSTEP_RETURN_IF_ERROR(wire::AwaitReadable(socket_.get(), deadline_, options_.ended));
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string banner,
                              wire::ReceiveExactly(socket_.get(), wire::kBannerBytes, deadline_));
    if (banner.compare(0, wire::kMagic.size(), wire::kMagic) != 0) {
      return FailedPrecondition("another program listens there");
    }
    ByteReader behind_magic(std::string_view(banner).substr(wire::kMagic.size()));
    const uint32_t version = behind_magic.Number<uint32_t>();
    if (version != wire::kVersion) {
      return FailedPrecondition(StrCat("it speaks version ", version, " of the protocol, this is ", wire::kVersion));
    }
    peer_seen_ = true;
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string nonce, wire::MakeNonce());
    // The guest gives its proof first, to any program that listens there. This is safe, as the two proofs are made from
    // different words: the guest's proof cannot be sent back to it as the host's proof.
    const wire::Keys keys = wire::MakeKeys(options_.secret, std::string_view(banner).substr(12), nonce);
    LOCKSTEP_RETURN_IF_ERROR(
        wire::SendAll(socket_.get(), StrCat(wire::kMagic, nonce, AsBytes(keys.guest_proof)), deadline_));
    LOCKSTEP_RETURN_IF_ERROR(wire::AwaitReadable(socket_.get(), deadline_, options_.ended));
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string verdict,
                              wire::ReceiveExactly(socket_.get(), wire::kVerdictBytes, deadline_));
    Digest proof;
    std::memcpy(proof.data(), verdict.data() + 1, wire::kTagBytes);
    if (verdict[0] != wire::kWelcome || !SameDigest(proof, keys.host_proof)) {
      return FailedPrecondition("the secrets differ");
    }
    welcome_ = true;
    const wire::Hello hello = {static_cast<uint32_t>(options_.rank), static_cast<uint32_t>(options_.size),
                               static_cast<uint64_t>(getpid()), options_.note};
    LOCKSTEP_RETURN_IF_ERROR(
        wire::SendAll(socket_.get(), wire::MakeFrame(keys.frames, Direction::kToHost, wire::Encode(hello)), deadline_));
    return AwaitAnswer(keys);
  }

  Result<RendezvousResult> AwaitAnswer(const wire::Keys& keys) {
    // Rank 0's deadline began at another time, but before it welcomed us; its error has more details than ours.
    const Deadline patience =
        Deadline::After(std::min(deadline_.Left() + kHandshakeTimeout_s, options_.timeout_s + kReport_s));
    LOCKSTEP_RETURN_IF_ERROR(wire::AwaitReadable(socket_.get(), patience, options_.ended));
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string body,
                              wire::ReceiveFrame(socket_.get(), keys.frames, Direction::kToGuest, patience));
    answered_ = true;
    std::optional<wire::Answer> answer = wire::DecodeAnswer(body);
    if (!answer) return DataLoss("rendezvous: rank 0's answer cannot be read");
    LOCKSTEP_RETURN_IF_ERROR(answer->status);
    const size_t size = options_.size;
    if (answer->notes.size() != size || answer->addresses.size() != size) {
      return DataLoss(StrCat("rendezvous: rank 0's answer has ", answer->notes.size(), " notes and ",
                             answer->addresses.size(), " addresses, wanted ", size, " of each"));
    }
    RendezvousResult result = {.notes = std::move(answer->notes),
                               .key = RendezvousKey(options_.secret, answer->nonce),
                               .addresses = std::move(answer->addresses),
                               .own_address = LocalAddress(socket_.get())};
    result.addresses[0] = PeerAddress(socket_.get());
    if (options_.keep_connections) {
      result.connections.resize(options_.size);
      result.connections[0] = std::move(socket_);
    }
    return result;
  }

  const RendezvousOptions& options_;
  const Deadline deadline_;
  UniqueFd socket_;
  bool peer_seen_ = false;  // a program with this protocol was there
  bool welcome_ = false;    // the host knows the secret, and knows that we do
  bool answered_ = false;   // the host's answer has come
};

}  // namespace

Result<RendezvousResult> JoinRendezvous(const RendezvousOptions& options) {
  if (options.note.size() > kMaxNoteBytes) {
    return InvalidArgument(StrCat("rendezvous: a note of ", options.note.size(), " bytes, at most ", kMaxNoteBytes));
  }
  return options.rank == 0 ? Host(options).Run() : Guest(options).Run();
}

}  // namespace lockstep
