#include "core/base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

// A message is padded to blocks of 64 bytes. Each block is mixed into a state of eight 32-bit words, which is the
// digest in the end. All numbers are big-endian. The names a to h, w, s0, s1, t1 and t2 are the standard's.

namespace lockstep {
namespace {

constexpr size_t kBlockBytes = 64;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<uint32_t, 8>;

// Mixes one block of 64 bytes into the state (FIPS 180-4, section 6.2.2). The 16 words of the block are expanded to 64.
// Each of 64 rounds takes one word and rotates the state by a word; the result is added to the former state.
void Compress(const uint8_t* block, State& state) {
  uint32_t w[64];
  for (int t = 0; t < 16; ++t) {
    w[t] = uint32_t{block[4 * t]} << 24 | uint32_t{block[4 * t + 1]} << 16 | uint32_t{block[4 * t + 2]} << 8 |
           uint32_t{block[4 * t + 3]};
  }
  for (int t = 16; t < 64; ++t) {
    const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int t = 0; t < 64; ++t) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[t] + w[t];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const State mixed = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state[i] += mixed[i];
}

}  // namespace

Digest Sha256(std::string_view message) {
  Sha256Stream stream;
  stream.Update(message);
  return stream.Finish();
}

// Whole blocks of the piece are mixed in place; only a block that spans two pieces is copied.
void Sha256Stream::Update(std::string_view piece) {
  bytes_ += piece.size();
  const auto mix = [&](std::string_view block) { Compress(reinterpret_cast<const uint8_t*>(block.data()), state_); };
  if (!rest_.empty()) {
    const size_t taken = std::min(kBlockBytes - rest_.size(), piece.size());
    rest_ += piece.substr(0, taken);
    piece.remove_prefix(taken);
    if (rest_.size() < kBlockBytes) return;
    mix(rest_);
    rest_.clear();
  }
  for (; piece.size() >= kBlockBytes; piece.remove_prefix(kBlockBytes)) mix(piece);
  rest_ = piece;
}

Digest Sha256Stream::Finish() {
  // The message, a single one bit, zeros up to 8 bytes before the end of a block, and the length in bits.
  const uint64_t bits = bytes_ * 8;
  std::string end = "\x80";
  while ((rest_.size() + end.size()) % kBlockBytes != kBlockBytes - 8) end += '\0';
  for (int shift = 56; shift >= 0; shift -= 8) end += static_cast<char>(bits >> shift);
  Update(end);
  Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

// H(key ^ 5c.. + H(key ^ 36.. + message)): because of the outer hash, a peer without the key cannot append to a message
// whose plain hash it knows. The key fills one block; a longer key is replaced by its digest.
Digest HmacSha256(std::string_view key, std::string_view message) {
  std::string block(key);
  if (key.size() > kBlockBytes) block = AsBytes(Sha256(key));
  block.resize(kBlockBytes, '\0');
  std::string inner = block, outer = block;
  for (char& c : inner) c ^= 0x36;
  for (char& c : outer) c ^= 0x5c;
  const Digest hash = Sha256(inner.append(message));
  return Sha256(outer.append(AsBytes(hash)));
}

// Compares all bytes, without an early return.
bool SameDigest(const Digest& a, const Digest& b) {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

}  // namespace lockstep
