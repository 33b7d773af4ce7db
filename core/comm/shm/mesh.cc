#include "core/comm/shm/mesh.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "core/base/strings.h"

// Joining cannot deadlock: a call succeeds as soon as the callee listens, and all listen before the rendezvous; no
// answer is needed. The queue of callers holds 2 * kMaxRanks, more than there are ranks.

namespace lockstep::shm {
namespace {

// The first message on each connection: the caller's rank and its proof, as plain memory: both ends are on one machine.
struct Introduction {
  int32_t rank;
  Digest proof;
};

// The proof names caller and callee. Therefore it is not valid for another rank or in another rank's name.
Introduction Introduce(int from, int to, const Digest& key) {
  return {from, HmacSha256(AsBytes(key), StrCat("lockstep mesh:", from, ">", to))};
}

// Returns rank 0's answer to an introduction: it is sent with the shared memory, and made of other words.
Digest MemoryProof(const Digest& key, int to) { return HmacSha256(AsBytes(key), StrCat("lockstep memory:0>", to)); }

UniqueFd MakeSocket() {
  // Keeps message boundaries, so that a message is received whole or not at all.
  return UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Makes the address with this abstract name: a zero byte, then the name, whose end is given by the length and not by a
// zero. A name that is too long is cut off: no program listens there.
socklen_t MakeAddress(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const size_t size = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), size);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
}

// Stores the kernel's data about the process at the other end. The kernel recorded the credentials when the process
// connected or began to listen, so the process cannot forge them.
void AddPeer(Peers& peers, int rank, UniqueFd socket) {
  ucred credentials = {};
  socklen_t length = sizeof(credentials);
  getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length);
  // A peer in another process namespace has no process id here; its socket has to suffice.
  UniqueFd pidfd(credentials.pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, credentials.pid, 0)) : UniqueFd::kNone);
  peers.Add(rank, std::move(socket), std::move(pidfd), credentials.pid);
}

// Connects to rank `to` for rank `from`, and introduces it.
Result<UniqueFd> Call(int from, int to, const std::string& name, const Digest& key, const Deadline& deadline) {
  sockaddr_un address;
  const socklen_t length = MakeAddress(name, address);
  UniqueFd socket = MakeSocket();
  if (!socket.valid()) return ErrnoStatus("socket", errno);
  while (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    // Its queue of callers is full; it will accept them later.
    const bool again = errno == EAGAIN || errno == EINTR;
    if (!again || deadline.Passed()) {
      return Unavailable(StrCat("rank ", from, ": no local connection to rank ", to, ": ", std::strerror(errno),
                                " (all ranks of backend 'shm' have to be on one host, in one network namespace)"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const Introduction introduction = Introduce(from, to, key);
  if (send(socket.get(), &introduction, sizeof(introduction), MSG_NOSIGNAL) != sizeof(introduction)) {
    const int error = errno;
    return ErrnoStatus(StrCat("rank ", from, ": introduction to rank ", to), error);
  }
  return socket;
}

// The most silent callers that are kept. A rank introduces itself as soon as it is connected, so with more of them the
// oldest is disconnected.
constexpr size_t kMaxSilent = 64;

// The interval between calls of Ended.
constexpr double kLook_s = 0.1;

// Accepts calls until all higher ranks are connected. An unauthenticated caller is disconnected when it sends something
// wrong. A silent one waits until the end, or until there are too many of them. One poll serves the listener and all
// silent callers, so none delays another.
class Answering {
 public:
  Answering(int listener, int rank, int size, const Digest& key, const Ended& ended, Peers& peers)
      : listener_(listener), rank_(rank), size_(size), key_(key), ended_(ended), peers_(peers) {}

  Status Run(const Deadline& deadline) {
    while (true) {
      std::vector<int> missing;
      for (int rank = rank_ + 1; rank < size_; ++rank) {
        if (!peers_.socket(rank)) missing.push_back(rank);
      }
      if (missing.empty()) return OkStatus();
      if (ended_) LOCKSTEP_RETURN_IF_ERROR(ended_());
      if (deadline.Passed()) {
        return DeadlineExceeded(StrCat("rank ", rank_, ": no local connection from ",
                                       missing.size() == 1 ? "rank " : "ranks ", JoinWithAnd(missing),
                                       " within the rendezvous timeout"));
      }
      Serve(deadline);
    }
  }

 private:
  // Makes one turn: waits until something happens and handles it. An error of one caller affects only that caller.
  void Serve(const Deadline& deadline) {
    std::vector<pollfd> entries = {{listener_, POLLIN, 0}};
    for (const UniqueFd& caller : callers_) entries.push_back({caller.get(), POLLIN, 0});
    if (poll(entries.data(), entries.size(), deadline.PollMs(ended_ ? kLook_s : 3600)) <= 0) return;
    std::vector<UniqueFd> silent;
    for (size_t i = 0; i < callers_.size(); ++i) {
      if (entries[i + 1].revents != 0)
        Hear(std::move(callers_[i]));
      else
        silent.push_back(std::move(callers_[i]));
    }
    callers_ = std::move(silent);
    if (entries[0].revents != 0) {
      UniqueFd caller(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!caller.valid()) return;
      if (callers_.size() >= kMaxSilent) callers_.erase(callers_.begin());
      callers_.push_back(std::move(caller));
    }
  }

  // Reads a caller's message: it becomes a peer, or is disconnected when `caller` is destroyed. A connected rank is
  // never replaced.
  void Hear(UniqueFd caller) {
    Introduction got = {};
    if (recv(caller.get(), &got, sizeof(got), 0) != sizeof(got)) return;
    if (got.rank <= rank_ || got.rank >= size_ || peers_.socket(got.rank)) return;
    if (SameDigest(got.proof, Introduce(got.rank, rank_, key_).proof)) AddPeer(peers_, got.rank, std::move(caller));
  }

  const int listener_;
  const int rank_;
  const int size_;
  const Digest& key_;
  const Ended& ended_;
  Peers& peers_;
  std::vector<UniqueFd> callers_;  // silent callers, the oldest first
};

// A message with room for one descriptor.
class Message {
 public:
  explicit Message(std::span<char> bytes) : data_{bytes.data(), bytes.size()} {
    header_.msg_iov = &data_;
    header_.msg_iovlen = 1;
    header_.msg_control = control_;
    header_.msg_controllen = sizeof(control_);
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  msghdr* get() { return &header_; }
  cmsghdr* control() { return CMSG_FIRSTHDR(&header_); }

 private:
  alignas(cmsghdr) char control_[CMSG_SPACE(sizeof(int))] = {};
  iovec data_;
  msghdr header_ = {};
};

}  // namespace

Result<Mesh> Mesh::Listen() {
  UniqueFd listener = MakeSocket();
  if (!listener.valid()) return ErrnoStatus("socket", errno);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  // A socket that is bound to a family without a name gets a free abstract name.
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)) != 0) {
    return ErrnoStatus("bind of a local socket", errno);
  }
  if (listen(listener.get(), 2 * kMaxRanks) != 0) return ErrnoStatus("listen on a local socket", errno);
  socklen_t length = sizeof(address);
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return ErrnoStatus("getsockname", errno);
  }
  return Mesh(std::move(listener), std::string(address.sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1));
}

Result<Peers> Mesh::Join(int rank, const std::vector<std::string>& names, const Digest& key, const Deadline& deadline,
                         const Ended& ended) {
  Peers peers;
  for (int to = 0; to < rank; ++to) {
    LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd socket, Call(rank, to, names[to], key, deadline));
    AddPeer(peers, to, std::move(socket));
  }
  LOCKSTEP_RETURN_IF_ERROR(
      Answering(listener_.get(), rank, static_cast<int>(names.size()), key, ended, peers).Run(deadline));
  return peers;
}

Status SendFd(int socket, const UniqueFd& fd, const Digest& key, int to) {
  Digest proof = MemoryProof(key, to);
  Message message({reinterpret_cast<char*>(proof.data()), proof.size()});
  message.control()->cmsg_level = SOL_SOCKET;
  message.control()->cmsg_type = SCM_RIGHTS;
  message.control()->cmsg_len = CMSG_LEN(sizeof(int));
  const int raw = fd.get();
  std::memcpy(CMSG_DATA(message.control()), &raw, sizeof(raw));
  const ssize_t sent = sendmsg(socket, message.get(), MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(proof.size()) ? OkStatus() : ErrnoStatus("sending a descriptor", errno);
}

// The descriptor is sent with the message, as ancillary data, and installed in this process on receipt; it is closed on
// exec like all others. For any sender, it is closed here unless it is returned.
Result<UniqueFd> ReceiveFd(int socket, const Digest& key, int to, const Deadline& deadline, const Ended& ended) {
  pollfd entry = {socket, POLLIN, 0};
  while (poll(&entry, 1, deadline.PollMs(ended ? kLook_s : 3600)) <= 0) {
    if (ended) LOCKSTEP_RETURN_IF_ERROR(ended());
    if (deadline.Passed()) return DeadlineExceeded("no shared memory from rank 0 within the rendezvous timeout");
  }
  Digest proof = {};
  Message message({reinterpret_cast<char*>(proof.data()), proof.size()});
  const ssize_t got = recvmsg(socket, message.get(), MSG_CMSG_CLOEXEC);
  const cmsghdr* const control = message.control();
  if (got <= 0 || control == nullptr || control->cmsg_type != SCM_RIGHTS) {
    return Unavailable("rank 0 left before it handed over the shared memory");
  }
  int raw;
  std::memcpy(&raw, CMSG_DATA(control), sizeof(raw));
  UniqueFd fd(raw);
  if (got == static_cast<ssize_t>(proof.size()) && SameDigest(proof, MemoryProof(key, to))) return fd;
  return FailedPrecondition("the sender of the shared memory does not know the key of this job");
}

}  // namespace lockstep::shm
