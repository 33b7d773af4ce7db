#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace lockstep {

// Hash functions of the embedding tables. They decide the order in which keys are visited, and the initial values of
// tables, which have to be the same on all machines of a job. Incremental checkpoints name removed string keys by their
// fingerprints. So results never depend on the processor, the run or the version. Pure functions; thread-safe.

// A permutation of the 64-bit numbers. If keys differ in any few bits, all bits of their results differ: the 64-bit
// finalizer of MurmurHash3 (Appleby, public domain).
inline uint64_t MixBits(uint64_t x) {
  x ^= x >> 33;
  x *= 0xFF51AFD7ED558CCDu;
  x ^= x >> 33;
  x *= 0xC4CEB9FE1A85EC53u;
  x ^= x >> 33;
  return x;
}

// Returns a hash of 64 bits, different for every salt. Two strings may have the same hash, so callers that need
// certainty compare the bytes as well.
inline uint64_t Fingerprint(std::string_view bytes, uint64_t salt = 0) {
  // Each step multiplies 64 by 64 bits and folds the product's halves: one multiplication for 8 bytes.
  const auto fold = [](uint64_t a, uint64_t b) {
    const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  };
  uint64_t hash = MixBits(salt + 0x9E3779B97F4A7C15u) ^ (bytes.size() * 0xA0761D6478BD642Fu);
  const char* next = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, next += 8) {
    uint64_t word;
    std::memcpy(&word, next, 8);
    hash = fold(hash ^ word, 0xE7037ED1A0B428DBu) + word;
  }
  uint64_t rest = 0;
  if (left > 0) std::memcpy(&rest, next, left);
  return MixBits(fold(hash ^ rest, 0x8EBC6AF09C88C6E3u) + rest);
}

}  // namespace lockstep
