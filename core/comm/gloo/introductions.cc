#include "core/comm/gloo/introductions.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <list>
#include <string_view>
#include <thread>

#include "core/base/bytes.h"
#include "core/base/strings.h"
#include "core/comm/rendezvous/network_addresses.h"
#include "core/comm/rendezvous/rendezvous_wire.h"

// Calling cannot deadlock: each rank first calls all lower ones, in their order, and then answers the higher ones. A
// called rank already listens, and waits only for lower ranks.

namespace lockstep::gloo {
namespace {

constexpr std::string_view kMagic = "LOCKPAIR";
constexpr size_t kBannerBytes = 8 + wire::kNonceBytes;
constexpr size_t kProofBytes = 4 + wire::kNonceBytes + wire::kTagBytes;
constexpr double kLook_s = 0.1;

// Both ends' proofs are made of the same numbers and of different words, so a peer cannot send back the other's proof.
Digest Proof(const Digest& key, std::string_view word, int caller, int callee, std::string_view callee_nonce,
             std::string_view caller_nonce) {
  return HmacSha256(AsBytes(key),
                    StrCat("lockstep stream ", word, ":", caller, ">", callee, ":", callee_nonce, caller_nonce));
}

bool IsProof(std::string_view bytes, const Digest& wanted) {
  Digest got;
  if (bytes.size() != got.size()) return false;
  std::memcpy(got.data(), bytes.data(), got.size());
  return SameDigest(got, wanted);
}

// The common data of all connections of a rank.
struct Job {
  int index;
  std::span<const int> ranks;
  const Digest& key;
  const Deadline& deadline;
  const wire::Ended& ended;

  std::string who() const { return StrCat("rank ", ranks[index]); }
};

// Receives exactly that many bytes, however slowly they come.
Result<std::string> Receive(const Job& job, int socket, size_t bytes) {
  std::string got;
  while (got.size() < bytes) {
    LOCKSTEP_RETURN_IF_ERROR(wire::AwaitReadable(socket, job.deadline, job.ended));
    char buffer[128];
    const ssize_t n = recv(socket, buffer, std::min(sizeof(buffer), bytes - got.size()), 0);
    if (n > 0) got.append(buffer, static_cast<size_t>(n));
    if (n == 0) return Unavailable("the connection was closed");
    if (n < 0 && errno != EAGAIN && errno != EINTR) return Unavailable(std::strerror(errno));
  }
  return got;
}

// Runs the caller's part of the handshake.
Status Introduce(const Job& job, int peer, int socket) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string banner, Receive(job, socket, kBannerBytes));
  if (!banner.starts_with(kMagic)) return FailedPrecondition("another program listens there");
  const std::string_view theirs = std::string_view(banner).substr(kMagic.size());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string mine, wire::MakeNonce());
  ByteWriter proof;
  proof.Number(static_cast<uint32_t>(job.index));
  const Digest call = Proof(job.key, "call", job.index, peer, theirs, mine);
  LOCKSTEP_RETURN_IF_ERROR(wire::SendAll(socket, StrCat(proof.Take(), mine, AsBytes(call)), job.deadline));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string answer, Receive(job, socket, wire::kTagBytes));
  if (IsProof(answer, Proof(job.key, "answer", job.index, peer, theirs, mine))) return OkStatus();
  return FailedPrecondition("the process that answers there does not know the key of this job");
}

// Calls again if the connection ends before the answer: the callee may have dropped this rank because of too many
// unauthenticated connections.
Result<UniqueFd> Call(const Job& job, int peer, const std::string& address) {
  const std::string callee = StrCat("rank ", job.ranks[peer]);
  Status status;
  do {
    Result<UniqueFd> socket = wire::Connect(address, job.deadline, callee, job.ended);
    status = socket.ok() ? Introduce(job, peer, socket->get()) : socket.status();
    if (status.ok()) return socket;
    if (job.ended) LOCKSTEP_RETURN_IF_ERROR(job.ended());
    if (status.code() != StatusCode::kUnavailable) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  } while (!job.deadline.Passed());
  return status.WithPrefix(StrCat(job.who(), ": no connection to ", callee, " at '", address, "': "));
}

// Accepts calls until all higher ranks are connected. A single poll loop serves all callers, so none delays another.
class Answering {
 public:
  Answering(const Job& job, int listener, std::vector<UniqueFd>& sockets)
      : job_(job), listener_(listener), sockets_(sockets) {}

  Status Run() {
    while (true) {
      if (job_.ended) LOCKSTEP_RETURN_IF_ERROR(job_.ended());
      std::vector<int> missing;
      for (size_t peer = job_.index + 1; peer < sockets_.size(); ++peer) {
        if (!sockets_[peer].valid()) missing.push_back(job_.ranks[peer]);
      }
      if (missing.empty()) return OkStatus();
      if (job_.deadline.Passed()) {
        return DeadlineExceeded(StrCat(job_.who(), ": no connection from ", missing.size() == 1 ? "rank " : "ranks ",
                                       JoinWithAnd(missing), " within the rendezvous timeout"));
      }
      LOCKSTEP_RETURN_IF_ERROR(Serve());
    }
  }

 private:
  struct Caller {
    UniqueFd socket;
    std::string nonce;  // our nonce
    std::string input;
    Deadline deadline = Deadline::After(Introductions::kHandshake_s);
  };

  Status Serve() {
    std::vector<pollfd> entries = {{listener_, POLLIN, 0}};
    for (const Caller& caller : callers_) entries.push_back({caller.socket.get(), POLLIN, 0});
    if (poll(entries.data(), entries.size(), job_.deadline.PollMs(kLook_s)) < 0) {
      return errno == EINTR ? OkStatus() : ErrnoStatus("poll", errno);
    }
    size_t i = 1;
    for (auto caller = callers_.begin(); caller != callers_.end(); ++i) {
      const bool keep = !caller->deadline.Passed() && (entries[i].revents == 0 || Hear(*caller));
      caller = keep ? std::next(caller) : callers_.erase(caller);
    }
    return entries[0].revents != 0 ? Welcome() : OkStatus();
  }

  // Sends the banner to new callers: to a bounded number, so that the deadline is checked however many call.
  Status Welcome() {
    for (UniqueFd& socket : wire::AcceptCallers(listener_)) {
      Caller caller;
      caller.socket = std::move(socket);
      LOCKSTEP_ASSIGN_OR_RETURN(caller.nonce, wire::MakeNonce());
      // An empty socket buffer takes these few bytes at once. If it does not, dropping the caller loses nothing.
      if (!wire::SendAll(caller.socket.get(), StrCat(kMagic, caller.nonce), Deadline::After(0)).ok()) continue;
      if (callers_.size() >= Introductions::kMaxUnproven) callers_.pop_front();
      callers_.push_back(std::move(caller));
    }
    return OkStatus();
  }

  // Reads a caller's input. Returns false if the caller is finished; as a peer it has its socket elsewhere. A peer
  // sends nothing after its proof until it has the answer, so no byte of its later messages is read here.
  bool Hear(Caller& caller) {
    char buffer[kProofBytes];
    const ssize_t got = recv(caller.socket.get(), buffer, kProofBytes - caller.input.size(), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    caller.input.append(buffer, static_cast<size_t>(got));
    if (caller.input.size() < kProofBytes) return true;
    const std::string_view input = caller.input;
    const uint32_t peer = ByteReader(input).Number<uint32_t>();
    const std::string_view nonce = input.substr(sizeof(peer), wire::kNonceBytes);
    const bool may_call = peer > static_cast<uint32_t>(job_.index) && peer < sockets_.size();
    const int from = may_call ? static_cast<int>(peer) : -1;
    const bool proven = may_call && IsProof(input.substr(sizeof(peer) + wire::kNonceBytes),
                                            Proof(job_.key, "call", from, job_.index, caller.nonce, nonce));
    const Digest mine = proven ? Proof(job_.key, "answer", from, job_.index, caller.nonce, nonce) : Digest{};
    const bool told = wire::SendAll(caller.socket.get(), AsBytes(mine), Deadline::After(0)).ok();
    // A peer that is already connected calls again if it did not get the answer: it uses the later connection.
    if (proven && told) sockets_[peer] = std::move(caller.socket);
    return false;
  }

  const Job& job_;
  const int listener_;
  std::vector<UniqueFd>& sockets_;
  std::list<Caller> callers_;  // not yet authenticated, the oldest first
};

}  // namespace

Result<Introductions> Introductions::Listen(const std::string& address, const std::string& who) {
  const bool v6 = address.find(':') != std::string::npos;
  const std::string host = v6 ? StrCat("[", address, "]") : address;
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd listener, wire::Listen(StrCat(host, ":0"), who));
  sockaddr_storage self = {};
  socklen_t length = sizeof(self);
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&self), &length) != 0) {
    return ErrnoStatus("getsockname", errno);
  }
  const in_port_t port = self.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(self).sin6_port
                                                    : reinterpret_cast<const sockaddr_in&>(self).sin_port;
  return Introductions(std::move(listener), StrCat(host, ":", ntohs(port)));
}

Result<std::vector<UniqueFd>> Introductions::Connect(int index, std::span<const int> ranks,
                                                     std::span<const std::string> addresses, const Digest& key,
                                                     const Deadline& deadline, const std::function<Status()>& ended) {
  const Job job = {index, ranks, key, deadline, ended};
  std::vector<UniqueFd> sockets(ranks.size());
  for (int peer = 0; peer < index; ++peer) {
    LOCKSTEP_ASSIGN_OR_RETURN(sockets[peer], Call(job, peer, addresses[peer]));
  }
  LOCKSTEP_RETURN_IF_ERROR(Answering(job, listener_.get(), sockets).Run());
  listener_ = {};
  return sockets;
}

}  // namespace lockstep::gloo
