#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

// What the two sides of a rendezvous say to each other, and how it is written (docs/wire_protocol.md).
namespace lockstep::wire {

inline constexpr std::string_view kMagic = "LOCKSTEP";
inline constexpr uint32_t kVersion = 1;
inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kTagBytes = 32;
inline constexpr size_t kBannerBytes = 8 + 4 + kNonceBytes;         // magic, version, the host's nonce
inline constexpr size_t kProofBytes = 8 + kNonceBytes + kTagBytes;  // magic, the guest's nonce, proof
inline constexpr size_t kVerdictBytes = 1 + kTagBytes;              // kWelcome or kRefused, the host's proof
inline constexpr uint32_t kMaxFrameBytes = 64 << 10;
inline constexpr char kWelcome = 'W';
inline constexpr char kRefused = 'R';

// Random bytes of the kernel.
std::string MakeNonce();

// The keys of one connection. Both sides compute them from the secret and both nonces.
struct Keys {
  Digest guest_proof;
  Digest host_proof;
  Digest frames;
};
Keys MakeKeys(std::string_view secret, std::string_view host_nonce, std::string_view guest_nonce);

// What a guest says of itself.
struct Hello {
  uint32_t rank = 0;
  uint32_t size = 0;
  uint64_t pid = 0;
  std::string note;
};

// What the host answers in the end: an error, or the notes of all and the nonce from which the meeting's key is made.
struct Answer {
  Status status;
  std::string nonce;
  std::vector<std::string> notes;
};

std::string Encode(const Hello& hello);
std::optional<Hello> DecodeHello(std::string_view bytes);
std::string Encode(const Answer& answer);
std::optional<Answer> DecodeAnswer(std::string_view bytes);

// A frame is the length of its body (4 bytes), the body, and the body's HMAC under the connection's key with the
// direction before it, so that neither can a frame be made by a stranger nor be sent back to its sender.
enum class Direction : char { kToHost = 'h', kToGuest = 'g' };
std::string MakeFrame(const Digest& key, Direction direction, std::string_view body);

// Looks for a frame at the start of `bytes`. Null: more bytes are needed. An error: this is no frame of ours.
Result<std::optional<std::string>> ParseFrame(const Digest& key, Direction direction, std::string_view bytes);

// Blocking transfers on a non-blocking socket, until the deadline.
Status SendAll(int socket, std::string_view bytes, const Deadline& deadline);
Result<std::string> ReceiveExactly(int socket, size_t bytes, const Deadline& deadline);
// The body of the next frame.
Result<std::string> ReceiveFrame(int socket, const Digest& key, Direction direction, const Deadline& deadline);

// A socket that listens at, or is connected to, one of the addresses that `address` resolves to. Non-blocking and
// closed on exec.
Result<UniqueFd> Listen(const std::string& address);
Result<UniqueFd> Connect(const std::string& address, const Deadline& deadline);

}  // namespace lockstep::wire
