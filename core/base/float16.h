#pragma once

#include <bit>
#include <cstdint>

namespace lockstep {

// Conversions between float and the two 16-bit formats, without branches, so that compilers vectorise loops of them. A
// 16-bit value travels as its bits in a uint16_t.
//
//             sign  exponent  fraction   largest     smallest normal   unit of subnormals
//   bfloat16    1       8         7      3.4e38      2^-126            2^-133
//   float16     1       5        10      65504       2^-14             2^-24
//   float       1       8        23      3.4e38      2^-126            2^-149
//
// Conversions to 16 bits round to nearest, ties to even, as IEEE 754 and TensorFlow do. A value that is too large
// becomes infinity. NaN stays NaN, but not every bit of it is kept. Conversions to float are exact. All rely on the
// default rounding mode, and on a processor that does not flush subnormal floats to zero.
//
// They are forced inline: a copy that was not compiled for the caller's instruction set would break its vector code.
// They are constexpr, so device code may call them as well. Pure functions; thread-safe.
//
// A bfloat16 is the upper half of a float.
[[gnu::always_inline]] constexpr float BFloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Rounds by adding half a unit less one, plus one more if the last bit that stays is odd. So a tie carries only from
// odd to even. A carry out of the fraction runs into the exponent, and from the largest exponent to infinity, as it
// should. Rounding could turn a NaN whose set bits are all in the lower half into infinity or a number. So a NaN is
// truncated instead, and one bit of its fraction is set.
[[gnu::always_inline]] constexpr uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
}

// binary16: 1 sign, 5 exponent (bias 15) and 10 fraction bits.
[[gnu::always_inline]] constexpr float Float16ToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  // Normal numbers, infinity and NaN: the fraction moves up by 13 bits. The exponent is first raised so that the
  // largest one becomes 255; for finite numbers the product takes the excess back.
  const float normal = std::bit_cast<float>((magnitude << 13) + (uint32_t{0xe0} << 23)) * 0x1p-112f;
  // Subnormal numbers are `magnitude` units of 2^-24. The magnitude is or-ed into the fraction of 0.5, whose unit is
  // 2^-24; then 0.5 is subtracted.
  const float subnormal = std::bit_cast<float>(magnitude | (uint32_t{126} << 23)) - 0.5f;
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude < 0x400 ? subnormal : normal);
  return std::bit_cast<float>(sign | bits);
}

[[gnu::always_inline]] constexpr uint16_t FloatToFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  // Subnormal results (below 2^-14): adding 0.5 makes the hardware round to units of 2^-24. The sum's fraction is the
  // result.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - (uint32_t{126} << 23);
  // Normal results: the exponent's bias changes from 127 to 15, and 13 bits are rounded off. A carry runs into the
  // exponent.
  const uint32_t normal = (magnitude - (uint32_t{112} << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  uint32_t result = magnitude < 0x38800000 ? subnormal : normal;
  result = magnitude >= 0x477ff000 ? 0x7c00 : result;  // 65520 and more round to infinity
  result = magnitude > 0x7f800000 ? 0x7e00 : result;
  return static_cast<uint16_t>(sign | result);
}

}  // namespace lockstep
