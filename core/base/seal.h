#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "core/base/sha256.h"
#include "core/base/sip_hash.h"

namespace lockstep {

// The proof of the messages that one rank sends to another over a connection. Without it, whoever is inside of the TCP
// connection could change a count, repeat a message, or send back what it got. Each message has a header:
//
//   tag (16) | number (8) | bytes (8) | the message        little-endian
//
// The tag is SipHash (sip_hash.h) of all that follows it, under a key that HMAC-SHA-256 derives from the job's key, the
// purpose of the connection, and the direction. Numbers count the messages of the direction, from 0 on. So a tag is
// worth nothing for another message, at another place, in the other direction, or in another job.
//
// The tag covers the whole message, or its first `covered` bytes if it may be large: then counts lie there, and data
// after them. HMAC-SHA-256 would take 40 times as long (docs/security.md).
//
// One object at each end for each direction. Thread-compatible.
class Seal {
 public:
  // The size of the header.
  static constexpr int64_t kBytes = 32;

  // key: of this start of the job, known to its ranks only. purpose: different for each connection between two ranks.
  Seal(const Digest& key, std::string_view purpose, int from, int to,
       uint64_t covered = std::numeric_limits<uint64_t>::max());

  // Writes the header of the next message to `frame`, [kBytes + bytes], in which the message lies after its place.
  void Close(char* frame, int64_t bytes);
  // Returns the next message; no value if this is not it. frame: [kBytes + most], and may hold anything.
  std::optional<std::string_view> Open(const char* frame, int64_t most);

  // Returns the number of messages so far.
  uint64_t count() const { return next_; }

 private:
  // Returns the tag of the number, the length and the message, which lie together.
  SipTag TagOf(const char* covered, uint64_t bytes) const;

  SipKey key_;
  uint64_t covered_;
  uint64_t next_ = 0;
};

}  // namespace lockstep
