#include "core/base/sip_hash.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

namespace lockstep {
namespace {

std::string Hex(const SipTag& tag) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : tag) text.append({kDigits[byte >> 4], kDigits[byte & 15]});
  return text;
}

// The first vectors of the authors' reference implementation (vectors_sip128): key 00 01 ... 0f, message 00 01 ...
TEST(SipHash, EqualsTheReference) {
  SipKey key;
  std::iota(key.begin(), key.end(), uint8_t{0});
  EXPECT_EQ(Hex(SipHash(key, "")), "a3817f04ba25a8e66df67214c7550293");
  EXPECT_EQ(Hex(SipHash(key, std::string(1, '\0'))), "da87c1d86b99af44347659119b22fc45");
  EXPECT_EQ(Hex(SipHash(key, std::string("\0\1", 2))), "8177228da4a45dc7fca38bdef60affe4");
}

TEST(SipHash, DependsOnEachBitOfKeyAndMessageAndOnTheLength) {
  const SipKey key = {1, 2, 3};
  for (const size_t size : {1u, 7u, 8u, 9u, 24u}) {
    const std::string message(size, 'm');
    const SipTag tag = SipHash(key, message);
    EXPECT_TRUE(SameTag(tag, SipHash(key, message)));
    EXPECT_FALSE(SameTag(tag, SipHash(key, message + '\0')));
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      std::string changed = message;
      changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ 1 << bit % 8);
      EXPECT_FALSE(SameTag(tag, SipHash(key, changed))) << bit;
    }
    for (size_t bit = 0; bit < 128; ++bit) {
      SipKey other = key;
      other[bit / 8] = static_cast<uint8_t>(other[bit / 8] ^ 1 << bit % 8);
      EXPECT_FALSE(SameTag(tag, SipHash(other, message))) << bit;
    }
  }
}

}  // namespace
}  // namespace lockstep
