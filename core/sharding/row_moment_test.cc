#include "core/sharding/row_moment.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int64_t kRows = 3000, kDim = 3;
using Rows = std::vector<float>;

Rows Numbered() {
  Rows rows(kRows * kDim);
  std::iota(rows.begin(), rows.end(), 0.0f);
  return rows;
}

RowMoment MomentOf(const Rows& rows) { return {rows.data(), kRows, kDim * static_cast<int64_t>(sizeof(float))}; }

void Change(Rows* rows, RowMoment* moment, const std::vector<uint32_t>& numbers) {
  moment->BeforeChange(numbers);
  for (const uint32_t number : numbers) std::fill_n(rows->begin() + number * kDim, kDim, -1.0f);
}

TEST(RowMoment, ReadsRowsThatDidNotChange) {
  const Rows rows = Numbered();
  RowMoment moment = MomentOf(rows);
  Rows read(rows.size());
  moment.Read({0, kRows}, read.data());
  EXPECT_EQ(read, rows);
  EXPECT_EQ(moment.aside_bytes(), 0);
}

TEST(RowMoment, ReadsRowsAsTheyWereWhileTheyChange) {
  const Rows before = Numbered();
  Rows rows = before, read(rows.size());
  RowMoment moment = MomentOf(rows);
  std::mt19937 random(7);
  std::uniform_int_distribution<uint32_t> any(0, kRows - 1);
  for (int64_t begin = 0; begin < kRows; begin += 100) {
    std::vector<uint32_t> numbers(50);
    std::generate(numbers.begin(), numbers.end(), [&] { return any(random); });
    numbers.push_back(numbers.front());  // twice
    Change(&rows, &moment, numbers);
    Change(&rows, &moment, numbers);  // again, as in the next step
    moment.Read({begin, begin + 100}, read.data() + begin * kDim);
  }
  EXPECT_EQ(read, before);
  EXPECT_NE(rows, before);
}

TEST(RowMoment, RowsThatWereSeenAreStillOfTheMoment) {
  const Rows before = Numbered();
  Rows rows = before, seen(rows.size()), read(rows.size());
  RowMoment moment = MomentOf(rows);
  Change(&rows, &moment, {3, 700});
  moment.Peek({0, kRows}, seen.data());
  Change(&rows, &moment, {4, 700});
  moment.Read({0, kRows}, read.data());
  EXPECT_EQ(seen, before);
  EXPECT_EQ(read, before);
}

TEST(RowMoment, CopiesOnlyRowsThatChangeBeforeTheyAreRead) {
  Rows rows = Numbered(), read(rows.size());
  RowMoment moment = MomentOf(rows);
  moment.Read({0, 2000}, read.data());
  Change(&rows, &moment, {0, 1999});
  EXPECT_EQ(moment.aside_bytes(), 0);
  Change(&rows, &moment, {2000});
  EXPECT_GT(moment.aside_bytes(), 0);
}

TEST(RowMoment, HasNoRowsOfAnEmptyShard) {
  RowMoment moment(nullptr, 0, 12);
  moment.BeforeChange({});
  moment.Read({0, 0}, nullptr);
}

}  // namespace
}  // namespace lockstep
