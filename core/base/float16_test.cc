#include "core/base/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep {
namespace {

// The oracle: binary16 by its definition, in double arithmetic, where each half and each midpoint of two halves is
// exact.
double ValueOfHalf(uint16_t half) {
  const int exponent = (half >> 10) & 31, fraction = half & 1023;
  const double sign = half & 0x8000 ? -1 : 1;
  if (exponent == 31) return fraction ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

// Covers all 65536 halves; zeros keep their sign.
TEST(Float16Test, EveryHalfHasItsValueAndComesBack) {
  for (int bits = 0; bits < 65536; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    const float value = Float16ToFloat(half);
    const double wanted = ValueOfHalf(half);
    if (std::isnan(wanted)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(std::isnan(Float16ToFloat(FloatToFloat16(value)))) << bits;
      continue;
    }
    ASSERT_EQ(value, wanted) << bits;
    ASSERT_EQ(std::signbit(value), std::signbit(wanted)) << bits;
    ASSERT_EQ(FloatToFloat16(value), half) << bits;
  }
}

// The midpoint between each pair of neighbours is the tie; the floats next to it must round to either side. Because
// rounding is monotonic, this and the values themselves determine the rounding of every float.
TEST(Float16Test, RoundsBetweenNeighboursToNearestAndTiesToEven) {
  for (int bits = 0; bits < 0x7c00; ++bits) {
    const uint16_t low = static_cast<uint16_t>(bits);
    const float a = static_cast<float>(ValueOfHalf(low));
    // Above the largest half lies the value of the next exponent: floats from half-way on round to infinity.
    const float b = bits + 1 == 0x7c00 ? 65536.0f : static_cast<float>(ValueOfHalf(low + 1));
    const float middle = (a + b) / 2;
    const uint16_t even = low % 2 == 0 ? low : low + 1;
    ASSERT_EQ(FloatToFloat16(middle), even) << bits;
    ASSERT_EQ(FloatToFloat16(std::nextafter(middle, 0.0f)), low) << bits;
    ASSERT_EQ(FloatToFloat16(std::nextafter(middle, 1e9f)), low + 1) << bits;
    ASSERT_EQ(FloatToFloat16(-middle), even | 0x8000) << bits;
  }
}

// The same test by bits, as a bfloat16 is the upper half of a float. The last line is a NaN whose only set bit is lost
// by rounding.
TEST(Float16Test, BFloat16RoundsToNearestAndTiesToEven) {
  for (int bits = 0; bits < 0x7f80; ++bits) {
    const uint16_t low = static_cast<uint16_t>(bits);
    ASSERT_EQ(FloatToBFloat16(BFloat16ToFloat(low)), low);
    const uint32_t middle = (uint32_t{low} << 16) + 0x8000;
    ASSERT_EQ(FloatToBFloat16(std::bit_cast<float>(middle)), low % 2 == 0 ? low : low + 1);
    ASSERT_EQ(FloatToBFloat16(std::bit_cast<float>(middle - 1)), low);
    ASSERT_EQ(FloatToBFloat16(std::bit_cast<float>(middle + 1)), low + 1);
  }
  EXPECT_TRUE(std::isnan(BFloat16ToFloat(FloatToBFloat16(std::nanf("")))));
  EXPECT_TRUE(std::isnan(BFloat16ToFloat(FloatToBFloat16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace lockstep
