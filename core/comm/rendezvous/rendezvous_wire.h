#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

// What the two sides of a rendezvous say to each other, and how it is written (docs/wire_protocol.md). Numbers are
// little-endian; a string is its length (4 bytes) and its bytes.
//
//   banner    | "LOCKSTEP" | version 4 | host nonce 32 |                          host to guest
//   proof     | "LOCKSTEP" | guest nonce 32 | HMAC 32 |                            guest to host
//   verdict   | 'W' or 'R' | HMAC 32, or zeros |                                   host to guest
//   frame     | length 4 | body | HMAC 32 |                                        hello, answer
//   hello     | rank 4 | size 4 | process id 8 | note string |                     a frame's body
//   answer    | code 4 | message string | nonce string | notes | addresses |       a frame's body
//   notes, addresses  | number 4 | strings |
//
// Pure functions for the bytes and a few for the sockets; without state, thread-safe. Errors of transfers are
// UNAVAILABLE (the connection is gone), DEADLINE_EXCEEDED and, where what came is no frame of ours, DATA_LOSS.
// Descriptors of arguments stay the caller's.
namespace lockstep::wire {

inline constexpr std::string_view kMagic = "LOCKSTEP";
// Raised with every change of what is on the wire.
inline constexpr uint32_t kVersion = 3;
// Enough that no two connections ever have the same.
inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kTagBytes = 32;
inline constexpr size_t kBannerBytes = 8 + 4 + kNonceBytes;         // magic, version, the host's nonce
inline constexpr size_t kProofBytes = 8 + kNonceBytes + kTagBytes;  // magic, the guest's nonce, proof
inline constexpr size_t kVerdictBytes = 1 + kTagBytes;              // kWelcome or kRefused, the host's proof
// The longest bodies: what a guest, and what rank 0, may make the other keep. Both have proven the secret by then, and
// memory is taken as the bytes come and not for a length that was promised.
inline constexpr uint32_t kMaxHelloBytes = 64 << 10;
inline constexpr uint32_t kMaxAnswerBytes = 4 << 20;
inline constexpr char kWelcome = 'W';
inline constexpr char kRefused = 'R';

// Random bytes of the kernel, good enough for keys. Waits, early after the machine's start, until the kernel has such.
// INTERNAL where it gives none.
Result<std::string> MakeNonce();

// The keys of one connection. Both sides compute them from the secret and both nonces: only who knows the secret can,
// and they are of no use in another connection.
struct Keys {
  // What each side sends to prove itself, and the key of the tags of all frames in both directions.
  Digest guest_proof;
  Digest host_proof;
  Digest frames;
};
Keys MakeKeys(std::string_view secret, std::string_view host_nonce, std::string_view guest_nonce);

// What a guest says of itself. `pid` is for messages alone.
struct Hello {
  uint32_t rank = 0;
  uint32_t size = 0;
  uint64_t pid = 0;
  std::string note;
};

// What the host answers in the end: an error, or the nonce from which the meeting's key is made, and of all ranks,
// [size], the notes and the numeric addresses by which the host sees them ("" for itself).
struct Answer {
  Status status;
  std::string nonce;
  std::vector<std::string> notes;
  std::vector<std::string> addresses;
};

// To bytes and back. Null where the bytes are not exactly one message: cut off, followed by more, or with a code that
// this version does not have.
std::string Encode(const Hello& hello);
std::optional<Hello> DecodeHello(std::string_view bytes);
std::string Encode(const Answer& answer);
std::optional<Answer> DecodeAnswer(std::string_view bytes);

// A frame is the length of its body (4 bytes), the body, and a tag: the HMAC, under the connection's key, of the
// direction and the body's digest, so that neither can a frame be made by a stranger nor be sent back to its sender.
// Each side sends one frame in each connection; there is no number in it against a frame that is sent twice.
enum class Direction : char { kToHost = 'h', kToGuest = 'g' };
std::string MakeFrame(const Digest& key, Direction direction, std::string_view body);
// The tag alone. Of a long body that goes to many the digest is taken once.
Digest MakeTag(const Digest& key, Direction direction, const Digest& body_digest);
constexpr uint32_t MaxBodyBytes(Direction direction) {
  return direction == Direction::kToHost ? kMaxHelloBytes : kMaxAnswerBytes;
}

// Looks for a frame at the start of `bytes`, which may be more than it or a part of it. Null: more bytes are needed. An
// error: this is no frame of ours. A length that is too large is refused as soon as its 4 bytes are there.
Result<std::optional<std::string>> ParseFrame(const Digest& key, Direction direction, std::string_view bytes);

// Whether what one waits for cannot come any more: OK, or why not. Asked some times a second; null is never.
using Ended = std::function<Status()>;

// Waits until something can be read, or the connection has ended; DEADLINE_EXCEEDED, or what `ended` says.
Status AwaitReadable(int socket, const Deadline& deadline, const Ended& ended);

// Blocking transfers on a non-blocking socket, until the deadline. A peer that has closed is an error and no signal.
// After an error it is unknown how much was transferred: the connection is of no more use. What is received has memory
// as it comes, at most 64 KiB ahead of it.
Status SendAll(int socket, std::string_view bytes, const Deadline& deadline);
Result<std::string> ReceiveExactly(int socket, size_t bytes, const Deadline& deadline);
// The body of the next frame.
Result<std::string> ReceiveFrame(int socket, const Digest& key, Direction direction, const Deadline& deadline);

// A socket that listens at, or is connected to, one of the addresses that `address` ("host:port", "[v6]:port") resolves
// to. Non-blocking and closed on exec. The port is a number. Resolving a name may take as long as the system's resolver
// does: no deadline holds there. INVALID_ARGUMENT where it does not resolve; UNAVAILABLE where the port is taken or the
// address not of this machine. `who`, the rank that is at the address, is for messages.
Result<UniqueFd> Listen(const std::string& address, std::string_view who = "rank 0");
// Tries all of them again and again, every 10 ms, until one answers: DEADLINE_EXCEEDED, with the reason of the last
// failure, where none does in time; or what `ended` says, which is asked each time. An address that swallows what is
// sent to it, instead of refusing, holds up the others for 2 s each time.
Result<UniqueFd> Connect(const std::string& address, const Deadline& deadline, std::string_view who = "rank 0",
                         const Ended& ended = nullptr);

// Those who have called since the last time, the first to call first, set up for short messages; at most kMostCallers
// of them. So a loop that serves a port has time for the callers that it has, and for its deadline, however many call.
// Who has hung up already is left out, but counts. Never waits; empty where nobody has called, or the process has no
// descriptor left. `listener` does not block.
inline constexpr int kMostCallers = 16;
std::vector<UniqueFd> AcceptCallers(int listener);

// Makes a connection one for short messages that may be silent for long: nothing is held back until more has come
// together, and the kernel finds out in some 40 s where the other machine is gone.
void SetUpConnection(int socket);

}  // namespace lockstep::wire
