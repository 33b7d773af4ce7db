#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104). Own code, because a system with nothing but a compiler has no
// library for it; written for clarity and not for speed. Pure functions; thread-safe. Keys and copies of them are not
// wiped from memory.
using Digest = std::array<uint8_t, 32>;

// Returns the digest of any bytes, zeros among them; "" has one as well.
Digest Sha256(std::string_view message);

// The same of a message that comes in pieces, of any sizes. Not thread-safe.
class Sha256Stream {
 public:
  void Update(std::string_view piece);
  // The digest of all pieces. Nothing may be called after it.
  Digest Finish();

 private:
  // The first 32 bits of the fractional parts of the square roots of the first 8 primes.
  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string rest_;  // less than a block
  uint64_t bytes_ = 0;
};

// Proves to who has the same `key` that the sender of `message` has it, and that nobody changed it on the way. Keys are
// of any length. What is proven is the bytes and nothing else: a message says in itself what it is for ("lockstep
// guest:", ...) and for whom, so that a proof is worth nothing in another place.
Digest HmacSha256(std::string_view key, std::string_view message);

// Compares in a time that does not depend on where the digests differ, so that a stranger cannot guess byte by byte.
// Everything that came from outside is compared by this and not by ==.
bool SameDigest(const Digest& a, const Digest& b);

// The 32 bytes as a string, for a message or as the key of another digest. A view: `digest` has to outlive it.
inline std::string_view AsBytes(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace lockstep
