#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lockstep {

// SipHash-2-4 with a tag of 128 bits (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012): a message
// authentication code for frames that are exchanged in each step. It takes a short message in a fraction of the time of
// HMAC-SHA-256 (sha256.h), which proves identities and derives keys. Without the key, a tag can only be guessed.
// OpenSSL's libcrypto computes it (crypto.h). Pure functions; thread-safe, also in a fork.
using SipKey = std::array<uint8_t, 16>;
using SipTag = std::array<uint8_t, 16>;

// Returns the tag of the message, which is covered with its length. A message names everything that must not change: a
// frame's number and direction belong into it, or into the key.
SipTag SipHash(const SipKey& key, std::string_view message);

// Compares in a time that does not depend on where the tags differ. Tags from outside are always compared by it.
bool SameTag(const SipTag& a, const SipTag& b);

}  // namespace lockstep
