#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/sha256.h"
#include "core/base/status.h"

// What the ends of a watch's connection say to each other (watch.h), and how it is written (docs/wire_protocol.md).
// Numbers are little-endian; a string is its length (4 bytes) and its bytes.
//
//   frame  | length 4 | body | HMAC 32 |
//   body   | 'b' |                                  I live
//          | 'l' | rank 4 | text string |           this rank has left in good order, and how
//          | 'e' | rank 4 | code 4 | text string |  this rank is lost, or gives up, and the job with it
//
// Of itself alone speaks a rank other than 0: the rank of its messages is its own.
namespace lockstep::watch {

// The longest body: what a peer may make us keep.
inline constexpr uint32_t kMaxBodyBytes = 4 << 10;
// What a text may have: a rank's last words, and those words with who said them.
inline constexpr size_t kMaxWordsBytes = 2 << 10;
inline constexpr size_t kMaxTextBytes = 3 << 10;
inline constexpr size_t kTagBytes = 32;

struct Message {
  enum class Kind : char { kBeat = 'b', kLeft = 'l', kEnd = 'e' };
  Kind kind = Kind::kBeat;
  uint32_t rank = 0;  // not of a beat
  Status status;      // of kEnd, and not OK then; of kLeft CANCELLED with its text, or OK without one
};

// The status with what is too long for `most` bytes cut off its text, between two characters of UTF-8.
Status Cut(const Status& status, size_t most);

// To bytes and back; of a text at most kMaxTextBytes. Null where the bytes are not exactly one message.
std::string Encode(const Message& message);
std::optional<Message> Decode(std::string_view bytes);

// One direction of one connection, with the number of the next frame in it. A frame's tag is made of that number and
// the body, under a key for this direction of this connection alone: so none can be made by a stranger, nor be left
// out, sent again, sent back, or used elsewhere. Thread-compatible.
class Channel {
 public:
  enum class Direction : char { kToZero = 'z', kFromZero = 'g' };
  // guest: the rank at the other end of rank 0's connection.
  Channel(const Digest& meeting_key, int guest, Direction direction);

  // The next frame to send.
  std::string Seal(std::string_view body);
  // Takes the next frame's body from the start of `input`, which may be more than it or a part of it. Null: more bytes
  // are needed. DATA_LOSS: this is not the next frame; nothing that follows can be read any more.
  Result<std::optional<std::string>> Open(std::string& input);

 private:
  Digest Tag(std::string_view body) const;

  const Digest key_;
  uint64_t number_ = 0;  // of frames sealed or opened
};

}  // namespace lockstep::watch
