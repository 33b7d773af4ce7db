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

// The messages of a rendezvous, and their encoding (docs/wire_protocol.md). Numbers are little-endian; a string is its
// length (4 bytes) and its bytes.
// ```
// banner    | "LOCKSTEP" | version 4 | host nonce 32 |                          host to guest
// proof     | "LOCKSTEP" | guest nonce 32 | HMAC 32 |                            guest to host
// verdict   | 'W' or 'R' | HMAC 32, or zeros |                                   host to guest
// frame     | length 4 | body | HMAC 32 |                                        hello, answer
// hello     | rank 4 | size 4 | process id 8 | note string |                     a frame's body
// answer    | code 4 | message string | nonce string | notes | addresses |       a frame's body
// notes, addresses  | number 4 | strings |
// ```
// Pure functions for the bytes and a few for the sockets; without state, thread-safe. Errors of transfers are
// UNAVAILABLE (the connection is gone), DEADLINE_EXCEEDED, and DATA_LOSS if the received bytes are not a frame of ours.
// Descriptors in arguments stay the caller's.
namespace lockstep::wire {

inline constexpr std::string_view kMagic = "LOCKSTEP";
// Incremented with every change of the bytes on the wire.
inline constexpr uint32_t kVersion = 4;
// Enough that no two connections ever have the same.
inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kTagBytes = 32;
inline constexpr size_t kBannerBytes = 8 + 4 + kNonceBytes;         // magic, version, the host's nonce
inline constexpr size_t kProofBytes = 8 + kNonceBytes + kTagBytes;  // magic, the guest's nonce, proof
inline constexpr size_t kVerdictBytes = 1 + kTagBytes;              // kWelcome or kRefused, the host's proof
// The longest bodies: the most that a guest, or rank 0, may make the other side keep. Both have proven the secret by
// then. Memory is allocated as the bytes come, and not for an announced length.
inline constexpr uint32_t kMaxHelloBytes = 64 << 10;
inline constexpr uint32_t kMaxAnswerBytes = 4 << 20;
inline constexpr char kWelcome = 'W';
inline constexpr char kRefused = 'R';

// Random bytes from the kernel, good enough for keys. Early after the machine's start, it waits until the kernel has
// some. INTERNAL if the kernel gives none.
Result<std::string> MakeNonce();

// The keys of one connection. Both sides compute them from the secret and both nonces. So only a process that knows the
// secret can, and the keys are of no use in another connection.
struct Keys {
  // The proof that each side sends, and the key of the tags of all frames in both directions.
  Digest guest_proof;
  Digest host_proof;
  Digest frames;
};
Keys MakeKeys(std::string_view secret, std::string_view host_nonce, std::string_view guest_nonce);

// A guest's description of itself. `pid` is only for messages.
struct Hello {
  uint32_t rank = 0;
  uint32_t size = 0;
  uint64_t pid = 0;
  std::string note;
};

// The host's final answer: an error, or the nonce from which the key of the rendezvous is made, and the notes and
// numeric addresses of all ranks, [size]. An address is the one that the host sees ("" for its own).
struct Answer {
  Status status;
  std::string nonce;
  std::vector<std::string> notes;
  std::vector<std::string> addresses;
};

// Encodes and decodes. Null if the bytes are not exactly one message: cut off, followed by more, or with a code that
// this version does not have.
std::string Encode(const Hello& hello);
std::optional<Hello> DecodeHello(std::string_view bytes);
std::string Encode(const Answer& answer);
std::optional<Answer> DecodeAnswer(std::string_view bytes);

// A frame is the length of its body (4 bytes), the body, and a tag: the HMAC, under the connection's key, of the
// direction and the body's digest. So a peer without the key cannot make a frame, and a frame cannot be sent back to
// its sender. Each side sends one frame in each connection; it has no sequence number, which would
// detect a frame that is sent twice.
enum class Direction : char { kToHost = 'h', kToGuest = 'g' };
std::string MakeFrame(const Digest& key, Direction direction, std::string_view body);
// Only the tag. If a long body goes to many guests, its digest is computed once.
Digest MakeTag(const Digest& key, Direction direction, const Digest& body_digest);
constexpr uint32_t MaxBodyBytes(Direction direction) {
  return direction == Direction::kToHost ? kMaxHelloBytes : kMaxAnswerBytes;
}

// Looks for a frame at the start of `bytes`, which may be longer, or only a part of a frame. Null: more bytes are
// needed. An error: this is not a frame of ours. A length that is too large is refused as soon as its 4 bytes are
// there.
Result<std::optional<std::string>> ParseFrame(const Digest& key, Direction direction, std::string_view bytes);

// Whether an awaited event cannot come any more: OK, or the reason. Called some times a second; null means never.
using Ended = std::function<Status()>;

// Waits until data can be read, or the connection has ended; DEADLINE_EXCEEDED, or the error of `ended`.
Status AwaitReadable(int socket, const Deadline& deadline, const Ended& ended);

// Blocking transfers on a non-blocking socket, until the deadline. A peer that has closed gives an error and no signal.
// After an error, the number of transferred bytes is unknown: the connection is of no more use. Memory for received
// data is allocated as the data comes, at most 64 KiB ahead of it.
Status SendAll(int socket, std::string_view bytes, const Deadline& deadline);
Result<std::string> ReceiveExactly(int socket, size_t bytes, const Deadline& deadline);
// Returns the body of the next frame.
Result<std::string> ReceiveFrame(int socket, const Digest& key, Direction direction, const Deadline& deadline);

// A socket that listens at, or is connected to, one of the addresses to which `address` ("host:port", "[v6]:port")
// resolves. Non-blocking and closed on exec. The port is a number. Resolving a name may take as long as the system's
// resolver does; no deadline applies to it. INVALID_ARGUMENT if it does not resolve; UNAVAILABLE if the port is taken
// or the address is not of this machine. `who`, the rank at the address, is for messages.
Result<UniqueFd> Listen(const std::string& address, std::string_view who = "rank 0");
// The same for a later time, at a port that the kernel picks: no other process gets this port, and nobody can connect
// until `listen` is called.
struct Reserved {
  UniqueFd socket;
  int port;
};
Result<Reserved> Reserve(const std::string& host);
// Tries all of them again and again, every 10 ms, until one answers. DEADLINE_EXCEEDED, with the reason of the last
// failure, if none does in time; or the error of `ended`, which is called each time. An address that ignores its
// packets, instead of refusing, delays the others by 2 s each time.
Result<UniqueFd> Connect(const std::string& address, const Deadline& deadline, std::string_view who = "rank 0",
                         const Ended& ended = nullptr);

// The callers since the last time, in the order in which they came, set up for short messages; at most kMostCallers of
// them. So a loop that serves a port has time for its current callers and its deadline, however many more come. A
// caller that has disconnected already is left out, but counts. Never waits; empty without callers, or if the process
// has no descriptor left. `listener` does not block.
inline constexpr int kMostCallers = 16;
std::vector<UniqueFd> AcceptCallers(int listener);

// Sets up a connection for short messages and long silence: data is sent without delay, and the kernel notices in some
// 40 s if the other machine is gone.
void SetUpConnection(int socket);

}  // namespace lockstep::wire
