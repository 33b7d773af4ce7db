#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lockstep {

// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104). Own code, because a system with nothing but a compiler has no
// library for it; for the few short messages of a rendezvous, so written for clarity and not for speed.
using Digest = std::array<uint8_t, 32>;

Digest Sha256(std::string_view message);
Digest HmacSha256(std::string_view key, std::string_view message);

// Compares in a time that does not depend on where the digests differ, so that a stranger cannot guess byte by byte.
bool SameDigest(const Digest& a, const Digest& b);

inline std::string_view AsBytes(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace lockstep
