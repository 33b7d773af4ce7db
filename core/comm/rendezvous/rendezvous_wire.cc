#include "core/comm/rendezvous/rendezvous_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>

#include "core/base/bytes.h"
#include "core/base/strings.h"

// All received data comes from peers that may lie. Lengths are compared with the available bytes before they are used,
// and the proofs are compared with SameDigest.

namespace lockstep::wire {
namespace {

struct AddressListDeleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, AddressListDeleter>;

// Resolves "host:port" or "[v6]:port" to socket addresses.
Result<AddressList> Resolve(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    return InvalidArgument(StrCat("rendezvous is '", address, "', wanted host:port"));
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &list);
  if (error != 0) {
    return InvalidArgument(StrCat("rendezvous '", address, "' cannot be resolved: ", gai_strerror(error)));
  }
  return AddressList(list);
}

bool IsAnyV6(const addrinfo& address) {
  return address.ai_family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(address.ai_addr)->sin6_addr);
}

// A port can be listened at even if a connection of an earlier job, or of the rendezvous before this one, lingers on
// it. All of its sockets have to permit that (`reuse`), including a guest's socket that was connected to itself
// (ConnectOnce). Two sockets that permit it can also have the same port until one of them listens.
UniqueFd MakeSocket(const addrinfo& address, bool reuse = true) {
  UniqueFd fd(socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol));
  const int one = 1, no = 0;
  if (fd.valid() && reuse) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  // "[::]" means every address, also IPv4 addresses, regardless of this machine's default.
  if (fd.valid() && IsAnyV6(address)) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  return fd;
}

// Waits until `socket` is ready for `events`. OK may also mean a signal, or the limit of one poll: callers try their
// transfer and call it again.
Status Await(int socket, short events, const Deadline& deadline) {
  pollfd entry = {socket, events, 0};
  const int ready = poll(&entry, 1, deadline.PollMs());
  if (ready > 0 || (ready < 0 && errno == EINTR)) return OkStatus();
  if (ready < 0) return ErrnoStatus("poll", errno);
  return deadline.Passed() ? DeadlineExceeded("no answer in time") : OkStatus();
}

// How long an address may be silent before the next one is tried: longer than the loss and repetition of a first packet
// takes. The address is tried again after the others.
constexpr double kAttempt_s = 2;

// One attempt at one address; waits for the other side's answer until the deadline.
Result<UniqueFd> ConnectOnce(const addrinfo& address, const Deadline& deadline) {
  UniqueFd fd = MakeSocket(address);
  if (!fd.valid()) return ErrnoStatus("socket", errno);
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return ErrnoStatus("connect", errno);
    LOCKSTEP_RETURN_IF_ERROR(Await(fd.get(), POLLOUT, deadline));
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return ErrnoStatus("connect", error);
  }
  // A loopback connection to a port without a listener can connect to itself: if the kernel picks that very port for
  // our end, the two ends of a simultaneous open are one socket. Guests that try every 10 ms really meet this, and it
  // would keep rank 0 from its port.
  sockaddr_storage self = {}, peer = {};
  socklen_t self_length = sizeof(self), peer_length = sizeof(peer);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&self), &self_length) != 0 ||
      getpeername(fd.get(), reinterpret_cast<sockaddr*>(&peer), &peer_length) != 0) {
    return ErrnoStatus("connect", errno);
  }
  if (self_length == peer_length && std::memcmp(&self, &peer, self_length) == 0) {
    return Unavailable("connect: nobody listens");
  }
  SetUpConnection(fd.get());
  return fd;
}

void WriteStrings(const std::vector<std::string>& strings, ByteWriter& writer) {
  writer.Number(static_cast<uint32_t>(strings.size()));
  for (const std::string& text : strings) writer.String(text);
}

// A wrong count ends with the bytes: the loop stops at the first string that is not there.
std::vector<std::string> ReadStrings(ByteReader& reader) {
  std::vector<std::string> strings;
  const uint32_t number = reader.Number<uint32_t>();
  for (uint32_t i = 0; i < number && reader.good(); ++i) strings.push_back(reader.String());
  return strings;
}

}  // namespace

Result<std::string> MakeNonce() {
  std::string nonce(kNonceBytes, '\0');
  // Requests of up to 256 bytes are never truncated. A signal can only end the wait for the kernel's first random
  // bytes.
  while (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    if (errno != EINTR) return ErrnoStatus("getrandom", errno);
  }
  return nonce;
}

// Three digests from three words: none of them reveals anything about the others.
Keys MakeKeys(std::string_view secret, std::string_view host_nonce, std::string_view guest_nonce) {
  const auto derive = [&](std::string_view purpose) {
    return HmacSha256(secret, StrCat("lockstep ", purpose, ":", host_nonce, guest_nonce));
  };
  return {derive("guest"), derive("host"), derive("frames")};
}

std::string Encode(const Hello& hello) {
  ByteWriter writer;
  writer.Number(hello.rank);
  writer.Number(hello.size);
  writer.Number(hello.pid);
  writer.String(hello.note);
  return writer.Take();
}

std::optional<Hello> DecodeHello(std::string_view bytes) {
  ByteReader reader(bytes);
  Hello hello;
  hello.rank = reader.Number<uint32_t>();
  hello.size = reader.Number<uint32_t>();
  hello.pid = reader.Number<uint64_t>();
  hello.note = reader.String();
  if (!reader.Complete()) return std::nullopt;
  return hello;
}

std::string Encode(const Answer& answer) {
  ByteWriter writer;
  WriteStatus(answer.status, writer);
  writer.String(answer.nonce);
  WriteStrings(answer.notes, writer);
  WriteStrings(answer.addresses, writer);
  return writer.Take();
}

std::optional<Answer> DecodeAnswer(std::string_view bytes) {
  ByteReader reader(bytes);
  Answer answer;
  answer.status = ReadStatus(reader);
  answer.nonce = reader.String();
  answer.notes = ReadStrings(reader);
  answer.addresses = ReadStrings(reader);
  if (!reader.Complete()) return std::nullopt;
  return answer;
}

Digest MakeTag(const Digest& key, Direction direction, const Digest& body_digest) {
  return HmacSha256(AsBytes(key), StrCat(static_cast<char>(direction), AsBytes(body_digest)));
}

// The tag covers direction and body. The length needs no tag: with another length, the body is another one.
std::string MakeFrame(const Digest& key, Direction direction, std::string_view body) {
  ByteWriter writer;
  writer.String(body);
  return writer.Take().append(AsBytes(MakeTag(key, direction, Sha256(body))));
}

Result<std::optional<std::string>> ParseFrame(const Digest& key, Direction direction, std::string_view bytes) {
  if (bytes.size() < sizeof(uint32_t)) return std::optional<std::string>();
  const uint32_t length = ByteReader(bytes).Number<uint32_t>();
  if (length > MaxBodyBytes(direction)) {
    return DataLoss(StrCat("a frame of ", length, " bytes, at most ", MaxBodyBytes(direction)));
  }
  bytes.remove_prefix(sizeof(uint32_t));
  if (bytes.size() < length + kTagBytes) return std::optional<std::string>();
  Digest tag;
  std::memcpy(tag.data(), bytes.data() + length, kTagBytes);
  const std::string_view body = bytes.substr(0, length);
  if (!SameDigest(tag, MakeTag(key, direction, Sha256(body)))) {
    return DataLoss("a frame with a wrong authentication tag");
  }
  return std::optional<std::string>(body);
}

Status AwaitReadable(int socket, const Deadline& deadline, const Ended& ended) {
  constexpr double kLook_s = 0.1;
  while (true) {
    if (ended) LOCKSTEP_RETURN_IF_ERROR(ended());
    pollfd entry = {socket, POLLIN, 0};
    const int ready = poll(&entry, 1, deadline.PollMs(ended ? kLook_s : 3600));
    if (ready > 0) return OkStatus();
    if (ready < 0 && errno != EINTR) return ErrnoStatus("poll", errno);
    if (deadline.Passed()) return DeadlineExceeded("no answer in time");
  }
}

Status SendAll(int socket, std::string_view bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      LOCKSTEP_RETURN_IF_ERROR(Await(socket, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return Unavailable(StrCat("the connection broke: ", std::strerror(errno)));
    }
  }
  return OkStatus();
}

// The announced `bytes` may be a lie: memory grows with the data that has come.
Result<std::string> ReceiveExactly(int socket, size_t bytes, const Deadline& deadline) {
  constexpr size_t kAhead = 64 << 10;
  std::string received;
  size_t done = 0;
  while (done < bytes) {
    if (done == received.size()) received.resize(std::min(bytes, done + kAhead));
    const ssize_t got = recv(socket, received.data() + done, received.size() - done, 0);
    if (got > 0) {
      done += static_cast<size_t>(got);
    } else if (got == 0) {
      return Unavailable("the connection was closed");
    } else if (errno == EAGAIN) {
      LOCKSTEP_RETURN_IF_ERROR(Await(socket, POLLIN, deadline));
    } else if (errno != EINTR) {
      return Unavailable(StrCat("the connection broke: ", std::strerror(errno)));
    }
  }
  return received;
}

// Reads no byte after the frame. If the length is too large, it reads no more, and ParseFrame reports it.
Result<std::string> ReceiveFrame(int socket, const Digest& key, Direction direction, const Deadline& deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::string frame, ReceiveExactly(socket, sizeof(uint32_t), deadline));
  const uint32_t length = ByteReader(frame).Number<uint32_t>();
  if (length <= MaxBodyBytes(direction)) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string rest, ReceiveExactly(socket, length + kTagBytes, deadline));
    frame += rest;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(std::optional<std::string> body, ParseFrame(key, direction, frame));
  if (!body) return DataLoss("a frame that ends too early");
  return *std::move(body);
}

void SetUpConnection(int socket) {
  const auto set = [&](int level, int option, int value) { setsockopt(socket, level, option, &value, sizeof(value)); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 6);
}

Result<UniqueFd> Listen(const std::string& address, std::string_view who) {
  LOCKSTEP_ASSIGN_OR_RETURN(AddressList list, Resolve(address));
  int error = 0;
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    UniqueFd fd = MakeSocket(*entry);
    if (fd.valid() && bind(fd.get(), entry->ai_addr, entry->ai_addrlen) == 0 && listen(fd.get(), SOMAXCONN) == 0) {
      return fd;
    }
    error = errno;
  }
  return Unavailable(StrCat(who, " cannot listen at '", address, "': ", std::strerror(error)));
}

Result<Reserved> Reserve(const std::string& host) {
  LOCKSTEP_ASSIGN_OR_RETURN(AddressList list, Resolve(StrCat(host, ":0")));
  int error = 0;
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    UniqueFd fd = MakeSocket(*entry, /*reuse=*/false);
    sockaddr_storage own = {};
    socklen_t length = sizeof(own);
    if (fd.valid() && bind(fd.get(), entry->ai_addr, entry->ai_addrlen) == 0 &&
        getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0) {
      // The port is at the same place in addresses of both kinds.
      return Reserved{std::move(fd), ntohs(reinterpret_cast<const sockaddr_in*>(&own)->sin_port)};
    }
    error = errno;
  }
  return Unavailable(StrCat("no port at '", host, "': ", std::strerror(error)));
}

Result<UniqueFd> Connect(const std::string& address, const Deadline& deadline, std::string_view who,
                         const Ended& ended) {
  LOCKSTEP_ASSIGN_OR_RETURN(AddressList list, Resolve(address));
  // Rank 0 may start later than its guests: tries until the deadline.
  std::string reason;
  while (true) {
    if (ended) LOCKSTEP_RETURN_IF_ERROR(ended());
    for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
      Result<UniqueFd> fd = ConnectOnce(*entry, Deadline::After(std::min(kAttempt_s, deadline.Left())));
      if (fd.ok()) return fd;
      reason = fd.status().message();
    }
    if (deadline.Passed()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return DeadlineExceeded(
      StrCat(who, " is missing: nobody answers at '", address, "' for ", deadline.Elapsed(), " s (", reason, ")"));
}

std::vector<UniqueFd> AcceptCallers(int listener) {
  std::vector<UniqueFd> callers;
  for (int i = 0; i < kMostCallers; ++i) {
    UniqueFd caller(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!caller.valid()) break;
    // Skipping a caller here costs less than greeting it: callers that connect and disconnect cannot fill the port's
    // queue.
    char byte;
    const ssize_t said = recv(caller.get(), &byte, 1, MSG_PEEK);
    if (said == 0 || (said < 0 && errno != EAGAIN && errno != EINTR)) continue;
    SetUpConnection(caller.get());
    callers.push_back(std::move(caller));
  }
  return callers;
}

}  // namespace lockstep::wire
