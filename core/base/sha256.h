#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104). The code is our own, because a system with only a compiler has no
// library for it. It is written for clarity, not for speed. Pure functions; thread-safe. Keys and copies of them are
// not wiped from memory.
using Digest = std::array<uint8_t, 32>;

// Returns the digest of any bytes, including zeros and the empty text.
Digest Sha256(std::string_view message);

// The digest of a message that comes in pieces of any size. Not thread-safe.
class Sha256Stream {
 public:
  void Update(std::string_view piece);
  // Returns the digest of all pieces. No method may be called after it.
  Digest Finish();

 private:
  // The first 32 bits of the fractional parts of the square roots of the first 8 primes.
  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string rest_;  // less than a block
  uint64_t bytes_ = 0;
};

// Returns a proof, for a receiver with the same `key`, that the sender of `message` has the key and that the message
// was not changed on the way. Keys have any length. The proof covers only the bytes. So a message names its purpose
// ("lockstep guest:", ...) and its receiver, and its proof is useless elsewhere.
Digest HmacSha256(std::string_view key, std::string_view message);

// Compares in a time that does not depend on where the digests differ, so that a peer cannot guess a digest byte by
// byte. Digests from outside are always compared by this function, never by ==.
bool SameDigest(const Digest& a, const Digest& b);

// Returns a view of the 32 bytes, for a message or as the key of another digest; `digest` has to outlive it.
inline std::string_view AsBytes(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace lockstep
