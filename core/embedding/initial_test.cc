#include "core/embedding/initial.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace lockstep {
namespace {

using Kind = InitialOptions::Kind;

// The known answers that the authors publish with their implementation (Random123, kat_vectors).
TEST(Philox, GivesThePublishedNumbers) {
  const auto expect = [](const PhiloxBlock& got, const PhiloxBlock& wanted) {
    for (int i = 0; i < 4; ++i) EXPECT_EQ(got.word[i], wanted.word[i]);
  };
  const uint32_t ones = 0xFFFFFFFF;
  expect(Philox({{0, 0, 0, 0}}, 0, 0), {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  expect(Philox({{ones, ones, ones, ones}}, ones, ones), {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  expect(Philox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

std::vector<float> Draw(const InitialOptions& options, const std::string& table, int64_t keys, int64_t dim) {
  const InitialValues initial(options, table);
  std::vector<float> values(keys * dim);
  for (int64_t key = 0; key < keys; ++key) initial.Fill(key * key - 50, values.data() + key * dim, dim);
  return values;
}

// A row is a function of only seed, table and key; a longer row begins with a shorter one.
TEST(InitialValues, DependOnSeedTableAndKeyAlone) {
  for (const Kind kind : {Kind::kUniform, Kind::kNormal, Kind::kTruncatedNormal}) {
    const InitialOptions options{kind, 0, 1, 7};
    EXPECT_EQ(Draw(options, "user", 100, 24), Draw(options, "user", 100, 24));
    EXPECT_NE(Draw(options, "user", 1, 24), Draw(options, "item", 1, 24));
    EXPECT_NE(Draw(options, "user", 1, 24), Draw({kind, 0, 1, 8}, "user", 1, 24));
    const InitialValues initial(options, "user");
    std::vector<float> first(37), other(37), shorter(5);
    initial.Fill(3, first.data(), 37);
    initial.Fill(int64_t{3} << 32, other.data(), 37);
    initial.Fill(3, shorter.data(), 5);
    EXPECT_NE(first, other);
    first.resize(5);
    EXPECT_EQ(first, shorter);
  }
}

// Compares the share of values below x with the distribution function, at many points.
TEST(InitialValues, FollowTheirDistributions) {
  constexpr int64_t kKeys = 20000, kDim = 10;
  const double most = 5 * 0.5 / std::sqrt(kKeys * kDim);  // five standard deviations of a share
  const auto normal = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  const auto check = [&](const InitialOptions& options, auto&& below) {
    const std::vector<float> values = Draw(options, "t", kKeys, kDim);
    for (double x = -4; x <= 4; x += 0.1) {
      int64_t count = 0;
      for (const float value : values) count += value < options.a + x * options.b ? 1 : 0;
      ASSERT_NEAR(static_cast<double>(count) / values.size(), below(x), most) << x;
    }
  };
  check({Kind::kNormal, 3, 0.5f, 1}, normal);
  check({Kind::kTruncatedNormal, -1, 2, 2}, [&](double x) {
    const double least = normal(-2);
    return std::min(1.0, std::max(0.0, (normal(x) - least) / (1 - 2 * least)));
  });
  check({Kind::kUniform, 0, 1, 3}, [](double x) { return std::min(1.0, std::max(0.0, x)); });
  for (const float value : Draw({Kind::kTruncatedNormal, 0, 1, 5}, "t", kKeys, kDim)) ASSERT_LE(std::fabs(value), 2.0f);
  for (const float value : Draw({Kind::kConstant, 0.25f, 1, 5}, "t", 10, kDim)) ASSERT_EQ(value, 0.25f);
}

// Keys have the rows of a matrix in turn, negative keys too.
TEST(InitialValues, AreRowsOfAMatrix) {
  const auto rows = std::make_shared<const std::vector<float>>(std::vector<float>{0, 1, 10, 11, 20, 21});
  const InitialOptions options{.kind = Kind::kRows, .rows = rows};
  EXPECT_EQ(options.Validate(2), OkStatus());
  EXPECT_EQ(options.Validate(4).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((InitialOptions{.kind = Kind::kRows}).Validate(2).code(), StatusCode::kInvalidArgument);
  std::vector<float> row(2);
  for (const int64_t key : {1, 4, -2}) {
    InitialValues(options, "t").Fill(key, row.data(), 2);
    EXPECT_EQ(row, (std::vector<float>{10, 11})) << key;
  }
}

TEST(InitialValues, OptionsAreChecked) {
  EXPECT_EQ((InitialOptions{Kind::kUniform, 1, 0, 0}).Validate(4).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((InitialOptions{Kind::kNormal, 0, -1, 0}).Validate(4).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((InitialOptions{Kind::kConstant, NAN, 0, 0}).Validate(4).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((InitialOptions{Kind::kUniform, -1, 1, 0}).Validate(4), OkStatus());
}

}  // namespace
}  // namespace lockstep
