#include "core/comm/collective/elementwise.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "core/base/float16.h"

namespace lockstep {
namespace {

// The factor is not a float. If it were converted to float after the product, the last bit would sometimes differ.
TEST(Scale, MultipliesFloatsByAFactorOfTheirOwnType) {
  constexpr double kFactor = 0.9296160928171479;
  std::mt19937 random(1);
  std::uniform_real_distribution<double> uniform(-100, 100);
  std::vector<float> floats(1000), scaled(1000);
  std::vector<double> doubles(1000), scaled_doubles(1000);
  std::vector<uint16_t> halves(1000), scaled_halves(1000);
  for (size_t i = 0; i < floats.size(); ++i) {
    doubles[i] = uniform(random);
    floats[i] = static_cast<float>(doubles[i]);
    halves[i] = FloatToFloat16(floats[i]);
  }
  Scale(DType::kFloat32, kFactor, floats.data(), 1000, scaled.data());
  Scale(DType::kFloat64, kFactor, doubles.data(), 1000, scaled_doubles.data());
  Scale(DType::kFloat16, kFactor, halves.data(), 1000, scaled_halves.data());
  for (size_t i = 0; i < floats.size(); ++i) {
    EXPECT_EQ(scaled[i], floats[i] * static_cast<float>(kFactor));
    EXPECT_EQ(scaled_doubles[i], doubles[i] * kFactor);
    EXPECT_EQ(scaled_halves[i], FloatToFloat16(Float16ToFloat(halves[i]) * static_cast<float>(kFactor)));
  }
}

TEST(Scale, CutsIntegersOffAndKeepsThemInTheirRange) {
  const std::vector<int32_t> in = {-7, 7, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()};
  std::vector<int32_t> out(4);
  Scale(DType::kInt32, 0.5, in.data(), 4, out.data());
  EXPECT_EQ(out, (std::vector<int32_t>{-3, 3, 1073741823, -1073741824}));
  Scale(DType::kInt32, 3, in.data(), 4, out.data());
  EXPECT_EQ(out, (std::vector<int32_t>{-21, 21, in[2], in[3]}));
  const std::vector<uint8_t> flags = {0, 1};
  std::vector<uint8_t> copied(2);
  Scale(DType::kBool, 0.5, flags.data(), 2, copied.data());
  EXPECT_EQ(copied, flags);
}

TEST(ConvertIntegers, KeepsWhatFitsAndCutsOffWhatDoesNot) {
  const std::vector<uint8_t> bytes = {0, 200, 255};
  std::vector<int32_t> wide(3);
  ConvertIntegers(DType::kUInt8, bytes.data(), 3, DType::kInt32, wide.data());
  EXPECT_EQ(wide, (std::vector<int32_t>{0, 200, 255}));
  const std::vector<int64_t> in = {-129, -128, 127, 128, std::numeric_limits<int64_t>::min()};
  std::vector<int8_t> narrow(5);
  ConvertIntegers(DType::kInt64, in.data(), 5, DType::kInt8, narrow.data());
  EXPECT_EQ(narrow, (std::vector<int8_t>{-128, -128, 127, 127, -128}));
  std::vector<uint32_t> positive(5);
  ConvertIntegers(DType::kInt64, in.data(), 5, DType::kUInt32, positive.data());
  EXPECT_EQ(positive, (std::vector<uint32_t>{0, 0, 127, 128, 0}));
}

}  // namespace
}  // namespace lockstep
