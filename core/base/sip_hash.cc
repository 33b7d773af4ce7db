#include "core/base/sip_hash.h"

#include <bit>
#include <cstddef>
#include <cstring>

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

uint64_t Word(const void* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

struct State {
  uint64_t v0, v1, v2, v3;

  void Rounds(int number) {
    for (int i = 0; i < number; ++i) {
      v0 += v1;
      v1 = std::rotl(v1, 13) ^ v0;
      v0 = std::rotl(v0, 32);
      v2 += v3;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1;
      v1 = std::rotl(v1, 17) ^ v2;
      v2 = std::rotl(v2, 32);
    }
  }
  void Compress(uint64_t word) {
    v3 ^= word;
    Rounds(2);
    v0 ^= word;
  }
  uint64_t Fold() {
    Rounds(4);
    return v0 ^ v1 ^ v2 ^ v3;
  }
};

}  // namespace

// The names and constants are the paper's. 0xee and 0xdd keep the tag of 128 bits apart from
// the tag of 64 bits.
SipTag SipHash(const SipKey& key, std::string_view message) {
  const uint64_t k0 = Word(key.data()), k1 = Word(key.data() + 8);
  State state = {0x736f6d6570736575 ^ k0, 0x646f72616e646f6d ^ k1 ^ 0xee, 0x6c7967656e657261 ^ k0,
                 0x7465646279746573 ^ k1};
  size_t at = 0;
  for (; at + 8 <= message.size(); at += 8) state.Compress(Word(message.data() + at));
  // The last word: the rest of the bytes, and the length in its highest byte.
  std::array<char, 8> last = {};
  if (at < message.size()) std::memcpy(last.data(), message.data() + at, message.size() - at);
  last[7] = static_cast<char>(message.size());
  state.Compress(Word(last.data()));
  state.v2 ^= 0xee;
  const uint64_t low = state.Fold();
  state.v1 ^= 0xdd;
  const uint64_t high = state.Fold();
  SipTag tag;
  std::memcpy(tag.data(), &low, 8);
  std::memcpy(tag.data() + 8, &high, 8);
  return tag;
}

bool SameTag(const SipTag& a, const SipTag& b) {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

}  // namespace lockstep
