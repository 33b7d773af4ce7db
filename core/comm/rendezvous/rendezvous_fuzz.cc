// Promise of this file (security.md): the rendezvous refuses unauthenticated connections, wrong and repeated proofs,
// and impossible lengths.

#include "core/comm/rendezvous/rendezvous.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <thread>

#include "core/base/strings.h"
#include "core/comm/rendezvous/rendezvous_wire.h"
#include "core/fuzzing/fuzz.h"

// Whole conversations over TCP. One side is our code, the other is the input. The first byte of the input selects the
// part:
//
//   0  an unauthenticated peer connects to rank 0 and sends the rest
//   1  a caller that knows the secret sends the rest after its proof
//   2  a caller that knows the secret sends the rest as the body of a frame
//   3  rank 0 is the input, from its first byte on
//   4  rank 0 knows the secret, and the rest is the body of its answer

namespace lockstep::fuzzing {
namespace {

constexpr char kSecret[] = "secret";
constexpr double kPatience_s = 10;
constexpr uint32_t kParts = 5;

struct Listener {
  UniqueFd socket;
  std::string address;
};

Listener Listen() {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  Require(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(listener.get(), 64) == 0 &&
              getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0,
          "a port to listen at");
  return {std::move(listener), StrCat("127.0.0.1:", ntohs(address.sin_port))};
}

// Rank 0 of a job of two, for many inputs: until one of them is a rank 1 that it accepts, or ends the job. Nothing else
// may end it.
class Host {
 public:
  Host()
      : listener_(Listen()), thread_([this] {
          (void)JoinRendezvous({.rank = 0,
                                .size = 2,
                                .address = listener_.address,
                                .secret = kSecret,
                                .note = "",
                                .timeout_s = 1e6,
                                .listener = listener_.socket.get(),
                                .keep_connections = true});
        }) {}
  ~Host() { thread_.join(); }

  const std::string& address() const { return listener_.address; }

 private:
  Listener listener_;
  std::thread thread_;
};

// One host serves many inputs. It is never destroyed: it would wait for a rank 1.
std::unique_ptr<Host>& SharedHost() {
  static auto* host = new std::unique_ptr<Host>(std::make_unique<Host>());
  return *host;
}

// Closes the socket without the minute for which the machine would remember the connection.
void CloseAtOnce(int socket) {
  const linger now = {1, 0};
  setsockopt(socket, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

// Sends no more, and waits until the other side has read everything and disconnected.
void End(int socket, const Deadline& deadline) {
  shutdown(socket, SHUT_WR);
  while (wire::ReceiveExactly(socket, 1, deadline).ok()) {
  }
  Require(!deadline.Passed(), "a peer that sends no more is disconnected");
}

// Whether a host that has read this frame is done: all ranks are there, or the job cannot start.
bool EndsMeeting(std::string_view frame, const wire::Keys& keys) {
  const auto body = wire::ParseFrame(keys.frames, wire::Direction::kToHost, frame);
  if (!body.ok() || !body->has_value()) return false;
  const auto hello = wire::DecodeHello(**body);
  return hello && (hello->size != 2 || (hello->rank == 1 && hello->note.size() <= kMaxNoteBytes));
}

void CallHost(uint32_t part, std::string_view bytes) {
  const Deadline deadline = Deadline::After(kPatience_s);
  auto socket = wire::Connect(SharedHost()->address(), deadline);
  Require(socket.ok(), "rank 0 continues to listen");
  const auto banner = wire::ReceiveExactly(socket->get(), wire::kBannerBytes, deadline);
  Require(banner.ok(), "rank 0 continues to answer");
  CloseAtOnce(socket->get());
  if (part == 0) {
    (void)wire::SendAll(socket->get(), bytes, deadline);
    return End(socket->get(), deadline);
  }
  const std::string nonce(wire::kNonceBytes, 'n');
  const wire::Keys keys = wire::MakeKeys(kSecret, std::string_view(*banner).substr(12), nonce);
  const std::string frame =
      part == 1 ? std::string(bytes) : wire::MakeFrame(keys.frames, wire::Direction::kToHost, bytes);
  (void)wire::SendAll(socket->get(), StrCat(wire::kMagic, nonce, AsBytes(keys.guest_proof)), deadline);
  const auto verdict = wire::ReceiveExactly(socket->get(), wire::kVerdictBytes, deadline);
  Require(verdict.ok() && verdict->front() == wire::kWelcome, "who knows the secret is welcome");
  (void)wire::SendAll(socket->get(), frame, deadline);
  if (!EndsMeeting(frame, keys)) return End(socket->get(), deadline);
  Require(wire::ReceiveFrame(socket->get(), keys.frames, wire::Direction::kToGuest, deadline).ok(), "an answer");
  SharedHost() = nullptr;
  SharedHost() = std::make_unique<Host>();
}

// A rank 0 that sends `bytes` to its first caller.
void AnswerGuest(bool knows_secret, std::string_view bytes) {
  // It has its own listener: a guest that was disconnected connects again, and must not be taken for the next one.
  const Listener listener = Listen();
  std::thread guest([&] {
    const auto result = JoinRendezvous({.rank = 1,
                                        .size = 2,
                                        .address = listener.address,
                                        .secret = kSecret,
                                        .note = "",
                                        .timeout_s = 0.02,
                                        .keep_connections = true});
    if (!result.ok()) return;
    Require(result->notes.size() == 2 && result->addresses.size() == 2, "something of each rank");
    Require(result->connections.size() == 2 && result->connections[0].valid(), "the connection to rank 0");
  });
  const Deadline deadline = Deadline::After(kPatience_s);
  const UniqueFd caller(accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  CloseAtOnce(caller.get());
  if (!knows_secret) {
    (void)wire::SendAll(caller.get(), bytes, deadline);
  } else {
    const std::string nonce(wire::kNonceBytes, 'h');
    (void)wire::SendAll(caller.get(), StrCat(wire::kMagic, std::string_view("\x03\0\0\0", 4), nonce), deadline);
    if (const auto proof = wire::ReceiveExactly(caller.get(), wire::kProofBytes, deadline); proof.ok()) {
      const wire::Keys keys =
          wire::MakeKeys(kSecret, nonce, std::string_view(*proof).substr(wire::kMagic.size(), wire::kNonceBytes));
      (void)wire::SendAll(caller.get(), StrCat(wire::kWelcome, AsBytes(keys.host_proof)), deadline);
      (void)wire::SendAll(caller.get(), wire::MakeFrame(keys.frames, wire::Direction::kToGuest, bytes), deadline);
    }
  }
  shutdown(caller.get(), SHUT_WR);
  guest.join();
}

}  // namespace

std::vector<std::string> Seeds() {
  const std::string hello = wire::Encode(wire::Hello{1, 2, 3, "note"});
  const std::string answer = wire::Encode(wire::Answer{OkStatus(), "nonce", {"a", "b"}, {"", "::1"}});
  const std::string refused = wire::Encode(wire::Answer{FailedPrecondition("two processes claim rank 1"), "", {}, {}});
  return {StrCat(std::string_view("\0", 1), wire::kMagic, std::string(wire::kNonceBytes + wire::kTagBytes, 'x')),
          StrCat("\x01", std::string("\x10\0\0\0", 4), hello, std::string(wire::kTagBytes, 'x')),
          StrCat("\x02", hello),
          StrCat("\x03", wire::kMagic, std::string("\x03\0\0\0", 4), std::string(wire::kNonceBytes, 'h'), 'W',
                 std::string(wire::kTagBytes, 'x')),
          StrCat("\x04", answer),
          StrCat("\x04", wire::Encode(wire::Answer{OkStatus(), "nonce", {"of rank 0 alone"}, {""}})),
          StrCat("\x04", refused)};
}

int Fuzz(const uint8_t* data, size_t size) {
  std::string_view bytes = Bytes(data, size);
  const uint32_t part = Take(&bytes, kParts);
  // A length above the limit for any frame is noticed at its first bytes.
  bytes = bytes.substr(0, 2 * wire::kMaxHelloBytes);
  if (part < 3) {
    CallHost(part, bytes);
  } else {
    AnswerGuest(part == 4, bytes);
  }
  return 0;
}

}  // namespace lockstep::fuzzing
