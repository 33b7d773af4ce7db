#include "core/testing/oracle.h"

#include <gtest/gtest.h>

#include <cstring>

namespace lockstep::testing {
namespace {

template <typename T>
std::string Bytes(std::vector<T> values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// The oracle judges all reductions; examples that were computed by hand judge the oracle.
TEST(OracleTest, ReducesByHandMadeExamples) {
  EXPECT_EQ(NaiveReduce("sum", DType::kFloat32, {Bytes<float>({1, 2}), Bytes<float>({3, -5}), Bytes<float>({0.5, 1})}),
            Bytes<float>({4.5, -2}));
  EXPECT_EQ(NaiveReduce("mean", DType::kFloat64, {Bytes<double>({1, 2}), Bytes<double>({4, -5})}),
            Bytes<double>({2.5, -1.5}));
  EXPECT_EQ(NaiveReduce("sum", DType::kInt8, {Bytes<int8_t>({127, -128}), Bytes<int8_t>({1, -1})}),
            Bytes<int8_t>({-128, 127}));
  EXPECT_EQ(NaiveReduce("max", DType::kUInt8, {Bytes<uint8_t>({200}), Bytes<uint8_t>({100})}), Bytes<uint8_t>({200}));
  // The upper half of each unsigned type, which would be negative as a signed one.
  EXPECT_EQ(NaiveReduce("min", DType::kUInt16, {Bytes<uint16_t>({65535, 7}), Bytes<uint16_t>({1, 65000})}),
            Bytes<uint16_t>({1, 7}));
  EXPECT_EQ(NaiveReduce("max", DType::kUInt32, {Bytes<uint32_t>({1}), Bytes<uint32_t>({4000000000})}),
            Bytes<uint32_t>({4000000000}));
  EXPECT_EQ(NaiveReduce("max", DType::kUInt64, {Bytes<uint64_t>({1, ~0ull}), Bytes<uint64_t>({1ull << 63, 5})}),
            Bytes<uint64_t>({1ull << 63, ~0ull}));
  EXPECT_EQ(NaiveReduce("min", DType::kUInt64, {Bytes<uint64_t>({1, ~0ull}), Bytes<uint64_t>({1ull << 63, 5})}),
            Bytes<uint64_t>({1, 5}));
  EXPECT_EQ(NaiveReduce("sum", DType::kUInt16, {Bytes<uint16_t>({65535}), Bytes<uint16_t>({3})}), Bytes<uint16_t>({2}));
  EXPECT_EQ(NaiveReduce("product", DType::kUInt32, {Bytes<uint32_t>({1u << 31}), Bytes<uint32_t>({3})}),
            Bytes<uint32_t>({1u << 31}));
  EXPECT_EQ(NaiveReduce("sum", DType::kBool, {Bytes<uint8_t>({1, 0, 1}), Bytes<uint8_t>({1, 0, 0})}),
            Bytes<uint8_t>({1, 0, 1}));
  EXPECT_EQ(NaiveReduce("product", DType::kBool, {Bytes<uint8_t>({1, 0, 1}), Bytes<uint8_t>({1, 0, 0})}),
            Bytes<uint8_t>({1, 0, 0}));
  // 1 is 0x3c00 and 2^-11 is 0x1000 in float16. 1 + 2^-11 lies between two numbers and is rounded to the even one. With
  // another 2^-11, the sum in float is exact and representable.
  EXPECT_EQ(NaiveReduce("sum", DType::kFloat16, {Bytes<uint16_t>({0x3c00}), Bytes<uint16_t>({0x1000})}),
            Bytes<uint16_t>({0x3c00}));
  EXPECT_EQ(NaiveReduce("sum", DType::kFloat16,
                        {Bytes<uint16_t>({0x3c00}), Bytes<uint16_t>({0x1000}), Bytes<uint16_t>({0x1000})}),
            Bytes<uint16_t>({0x3c01}));
  EXPECT_EQ(NaiveReduce("sum", DType::kBFloat16, {Bytes<uint16_t>({0x3f80}), Bytes<uint16_t>({0x3f80})}),
            Bytes<uint16_t>({0x4000}));
}

TEST(OracleTest, DifferencesAreSeenAndNansAreEqual) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(FirstDifference(DType::kFloat32, Bytes<float>({1, nan}), Bytes<float>({1, -nan})), "");
  EXPECT_EQ(FirstDifference(DType::kFloat32, Bytes<float>({1, 2}), Bytes<float>({1, 3})), "element 1 is 2, wanted 3");
  EXPECT_EQ(FirstDifference(DType::kFloat32, Bytes<float>({0.0f}), Bytes<float>({-0.0f})), "element 0 is 0, wanted -0");
  EXPECT_EQ(FirstDifference(DType::kUInt64, Bytes<uint64_t>({~0ull}), Bytes<uint64_t>({1})),
            "element 0 is 18446744073709551615, wanted 1");
  EXPECT_EQ(FirstDifference(DType::kInt16, Bytes<int16_t>({1}), Bytes<int16_t>({1, 2})), "2 bytes, wanted 4");
  EXPECT_NE(FirstDifference(DType::kFloat32, Bytes<float>({nan}), Bytes<float>({1})), "");
}

}  // namespace
}  // namespace lockstep::testing
