#include "core/base/free_ranges.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

TEST(FreeRanges, TakesTheFirstThatIsLargeEnough) {
  FreeRanges free(100, 200);
  EXPECT_EQ(free.Take(40), 100);
  EXPECT_EQ(free.Take(20), 140);
  EXPECT_EQ(free.Take(41), std::nullopt);
  free.Return(100, 40);
  EXPECT_EQ(free.Take(30), 100);
  EXPECT_EQ(free.Take(40), 160);
  EXPECT_EQ(free.bytes(), 10);
}

// A bit for each byte says what is free.
TEST(FreeRanges, AreThoseOfABitmap) {
  constexpr int64_t kBytes = 300;
  std::mt19937 random(7);
  FreeRanges free(0, kBytes);
  std::vector<bool> is_free(kBytes, true);
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (int step = 0; step < 5000; ++step) {
    if (random() % 2 == 0 && !taken.empty()) {
      std::swap(taken[random() % taken.size()], taken.back());
      const auto [offset, bytes] = taken.back();
      taken.pop_back();
      free.Return(offset, bytes);
      for (int64_t i = 0; i < bytes; ++i) is_free[offset + i] = true;
      continue;
    }
    const auto bytes = static_cast<int64_t>(1 + random() % 40);
    int64_t wanted = -1;
    for (int64_t begin = 0, run = 0; begin < kBytes && wanted < 0; ++begin) {
      run = is_free[begin] ? run + 1 : 0;
      if (run == bytes) wanted = begin - bytes + 1;
    }
    const std::optional<int64_t> offset = free.Take(bytes);
    ASSERT_EQ(offset.value_or(-1), wanted);
    if (!offset) continue;
    taken.emplace_back(*offset, bytes);
    for (int64_t i = 0; i < bytes; ++i) is_free[*offset + i] = false;
  }
  int64_t left = 0;
  for (const bool is : is_free) left += is ? 1 : 0;
  EXPECT_EQ(free.bytes(), left);
}

}  // namespace
}  // namespace lockstep
