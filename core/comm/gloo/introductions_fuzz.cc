// Promise of this file (security.md): streams refuse unauthenticated connections and malformed messages.

#include "core/comm/gloo/introductions.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include "core/base/bytes.h"
#include "core/base/strings.h"
#include "core/comm/rendezvous/rendezvous_wire.h"
#include "core/fuzzing/fuzz.h"

// Handshakes of two ranks on different hosts. One side is ours, the other is the input. Its first byte selects the
// case:
//
//   0  an unauthenticated peer calls, and sends the rest
//   1  a caller with the key claims to be the rank of the next four bytes, and sends the rest after its proof
//   2  the callee is the input, from its first byte on
//   3  the callee sends the right banner, and the rest as its answer

namespace lockstep::fuzzing {
namespace {

using gloo::Introductions;
using Sockets = Result<std::vector<UniqueFd>>;

constexpr double kPatience_s = 10;
constexpr uint32_t kParts = 4;
constexpr std::string_view kMagic = "LOCKPAIR";
constexpr std::array<int, 2> kRanks = {0, 10};
const Digest kKey = HmacSha256("secret", "fuzz");

Introductions Listen() {
  Result<Introductions> made = Introductions::Listen("127.0.0.1", "rank 0");
  Require(made.ok(), "a port to listen at");
  return *std::move(made);
}

// The first of two ranks, for as many inputs as it takes until one of them is the second rank. No other input may end
// it.
class Callee {
 public:
  Callee()
      : port_(Listen()), address_(port_.address()), thread_([this] {
          sockets_ = port_.Connect(0, kRanks, std::array<std::string, 2>(), kKey, Deadline::After(1e6),
                                   [this] { return over_ ? Cancelled("over") : OkStatus(); });
        }) {}
  ~Callee() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  const std::string& address() const { return address_; }
  UniqueFd Connected() {
    thread_.join();
    Require(sockets_.ok() && (*sockets_)[1].valid() && !(*sockets_)[0].valid(), "the connection that was proven");
    return std::move((*sockets_)[1]);
  }

 private:
  Introductions port_;
  const std::string address_;
  Sockets sockets_ = Internal("did not run");
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

// One object serves many inputs.
std::unique_ptr<Callee>& SharedCallee() {
  static auto callee = std::make_unique<Callee>();
  return callee;
}

// Closes at once, without the minute for which the machine would remember the connection.
void CloseAtOnce(int socket) {
  const linger now = {1, 0};
  setsockopt(socket, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

void CallRank(bool knows_key, std::string_view bytes) {
  const Deadline deadline = Deadline::After(kPatience_s);
  auto socket = wire::Connect(SharedCallee()->address(), deadline);
  Require(socket.ok(), "it continues to listen");
  const auto banner = wire::ReceiveExactly(socket->get(), kMagic.size() + wire::kNonceBytes, deadline);
  Require(banner.ok() && banner->starts_with(kMagic), "it continues to answer");
  CloseAtOnce(socket->get());
  if (!knows_key) {
    (void)wire::SendAll(socket->get(), bytes, deadline);
    shutdown(socket->get(), SHUT_WR);
    // At most zeros, and the end.
    while (true) {
      const auto answer = wire::ReceiveExactly(socket->get(), 1, deadline);
      if (!answer.ok()) break;
      Require(answer->front() == 0, "a peer without the key gets no proof");
    }
    return Require(!deadline.Passed(), "a peer that sends no more is disconnected");
  }
  uint32_t rank = 0;
  for (int i = 0; i < 4; ++i) rank |= Take(&bytes, 0x100) << (8 * i);
  const std::string mine(wire::kNonceBytes, 'n');
  const Digest proof = HmacSha256(AsBytes(kKey), StrCat("lockstep stream call:", static_cast<int>(rank),
                                                        ">0:", std::string_view(*banner).substr(kMagic.size()), mine));
  ByteWriter number;
  number.Number(rank);
  (void)wire::SendAll(socket->get(), StrCat(number.Take(), mine, AsBytes(proof), bytes), deadline);
  const auto answer = wire::ReceiveExactly(socket->get(), wire::kTagBytes, deadline);
  if (rank != 1)
    return Require(!answer.ok() || *answer == std::string(wire::kTagBytes, '\0'), "no other peer is rank 1");
  Require(answer.ok() && *answer != std::string(wire::kTagBytes, '\0'), "who knows the key is welcome");
  const UniqueFd connected = SharedCallee()->Connected();
  const auto behind = wire::ReceiveExactly(connected.get(), bytes.size(), deadline);
  Require(behind.ok() && *behind == bytes, "nothing after the proof is lost");
  SharedCallee() = std::make_unique<Callee>();
}

// Answers a calling rank with `bytes`: as the whole answer, or after the banner.
void AnswerCaller(bool with_banner, std::string_view bytes) {
  const Deadline deadline = Deadline::After(kPatience_s);
  auto listener = wire::Listen("127.0.0.1:0");
  Require(listener.ok(), "a port to listen at");
  sockaddr_storage self = {};
  socklen_t length = sizeof(self);
  getsockname(listener->get(), reinterpret_cast<sockaddr*>(&self), &length);
  const std::array<std::string, 2> addresses = {
      StrCat("127.0.0.1:", ntohs(reinterpret_cast<const sockaddr_in&>(self).sin_port)), ""};
  std::thread rank_1([&] {
    const Sockets sockets = Listen().Connect(1, kRanks, addresses, kKey, Deadline::After(0.02), nullptr);
    Require(!sockets.ok(), "a process without the key is no peer");
  });
  if (wire::AwaitReadable(listener->get(), deadline, nullptr).ok()) {
    const UniqueFd caller(accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (caller.valid()) {
      CloseAtOnce(caller.get());
      const std::string banner = with_banner ? StrCat(kMagic, std::string(wire::kNonceBytes, 'h')) : "";
      (void)wire::SendAll(caller.get(), StrCat(banner, bytes), deadline);
      shutdown(caller.get(), SHUT_WR);
    }
    *listener = UniqueFd();
    rank_1.join();
    return;
  }
  rank_1.join();
}

}  // namespace

std::vector<std::string> Seeds() {
  const std::string proof(wire::kNonceBytes + wire::kTagBytes, 'x');
  return {StrCat(std::string("\0\1\0\0\0", 5), proof),
          std::string("\1\1\0\0\0", 5),
          std::string("\1\1\0\0\0behind", 11),
          std::string("\1\2\0\0\0", 5),
          StrCat('\2', kMagic, proof),
          StrCat('\3', std::string(wire::kTagBytes, '\0')),
          StrCat('\3', std::string(wire::kTagBytes, 'x'))};
}

int Fuzz(const uint8_t* data, size_t size) {
  std::string_view bytes = Bytes(data, size);
  const uint32_t part = Take(&bytes, kParts);
  bytes = bytes.substr(0, 4096);
  if (part < 2) {
    CallRank(part == 1, bytes);
  } else {
    AnswerCaller(part == 3, bytes);
  }
  return 0;
}

}  // namespace lockstep::fuzzing
