#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/sha256.h"
#include "core/base/status.h"

// The messages between the ends of a watch's connection (watch.h) and their encoding (docs/wire_protocol.md). Numbers
// are little-endian; a string is its length (4 bytes) and its bytes.
// ```
// frame  | length 4 | body | HMAC 32 |
// body   | 'b' |                                  a beat: the rank lives
//        | 'l' | rank 4 | text string |           this rank has left in good order; how it left
//        | 'e' | rank 4 | code 4 | text string |  this rank is lost, or gives up, and the job ends
// ```
// A rank other than 0 sends messages only about itself.
namespace lockstep::watch {

// The longest body, which bounds the memory that a peer can make us use.
inline constexpr uint32_t kMaxBodyBytes = 4 << 10;
// The limits of texts: a rank's own text, and that text with the rank's name before it.
inline constexpr size_t kMaxWordsBytes = 2 << 10;
inline constexpr size_t kMaxTextBytes = 3 << 10;
inline constexpr size_t kTagBytes = 32;

struct Message {
  enum class Kind : char { kBeat = 'b', kLeft = 'l', kEnd = 'e' };
  Kind kind = Kind::kBeat;
  uint32_t rank = 0;  // unused for a beat
  Status status;      // for kEnd, not OK; for kLeft CANCELLED with its text, or OK without one
};

// Returns the status with its text cut to at most `most` bytes, between two characters of UTF-8.
Status Cut(const Status& status, size_t most);

// Convert to bytes and back; a text has at most kMaxTextBytes. Decode returns nothing unless the bytes are exactly one
// message.
std::string Encode(const Message& message);
std::optional<Message> Decode(std::string_view bytes);

// One direction of one connection, with the number of its next frame. A frame's tag is made of that number and the
// body, under a key for only this direction of this connection. So a frame cannot be forged, left out, repeated, sent
// back, or used elsewhere. Thread-compatible.
class Channel {
 public:
  enum class Direction : char { kToZero = 'z', kFromZero = 'g' };
  // guest: the rank at the other end of rank 0's connection.
  Channel(const Digest& meeting_key, int guest, Direction direction);

  // Returns the next frame to send.
  std::string Seal(std::string_view body);
  // Takes the next frame's body from the start of `input`, which may hold more than the frame or only a part. Returns
  // no value if more bytes are needed. DATA_LOSS if this is not the next frame; then nothing more can be read.
  Result<std::optional<std::string>> Open(std::string& input);

 private:
  Digest Tag(std::string_view body) const;

  const Digest key_;
  uint64_t number_ = 0;  // number of frames sealed or opened
};

}  // namespace lockstep::watch
