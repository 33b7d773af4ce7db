#include "core/sharding/row_changes.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int64_t kRows = 10000, kDim = 3, kRowBytes = kDim * static_cast<int64_t>(sizeof(float));

class RowChangesTest : public ::testing::Test {
 protected:
  RowChangesTest() : rows_(kRows * kDim) { std::iota(rows_.begin(), rows_.end(), 0.0f); }

  const char* Bytes(int64_t row = 0) const { return reinterpret_cast<const char*>(rows_.data() + row * kDim); }
  RowChanges Begin() const { return {Bytes(), kRows, kRowBytes, RunInline}; }
  std::vector<RowChanges::Change> Changes(const RowChanges& known) const {
    std::vector<RowChanges::Change> found;
    for (int64_t begin = 0; begin < kRows; begin += 700) {
      const RowRange part{begin, std::min(begin + 700, kRows)};
      known.Find(part, Bytes(begin), &found);
    }
    return found;
  }
  static std::vector<uint32_t> Numbers(const std::vector<RowChanges::Change>& changes) {
    std::vector<uint32_t> numbers;
    for (const RowChanges::Change& change : changes) numbers.push_back(change.row);
    return numbers;
  }

  std::vector<float> rows_;
};

using Expected = std::vector<uint32_t>;

TEST_F(RowChangesTest, FindsTheRowsThatDiffer) {
  const RowChanges known = Begin();
  EXPECT_EQ(Numbers(Changes(known)), Expected());
  rows_[9 * kDim + 2] = -1;
  rows_[kRows * kDim - 1] = -1;
  EXPECT_EQ(Numbers(Changes(known)), Expected({9, kRows - 1}));
  rows_[9 * kDim + 2] = 9 * kDim + 2;  // the old value again
  EXPECT_EQ(Numbers(Changes(known)), Expected({kRows - 1}));
}

TEST_F(RowChangesTest, FindsEveryBit) {
  const RowChanges known = Begin();
  for (int64_t bit = 0; bit < kRowBytes * 8; ++bit) {
    auto* const byte = reinterpret_cast<char*>(rows_.data() + 5 * kDim) + bit / 8;
    *byte = static_cast<char>(*byte ^ 1 << bit % 8);
    EXPECT_EQ(Numbers(Changes(known)), Expected({5})) << bit;
    *byte = static_cast<char>(*byte ^ 1 << bit % 8);
  }
}

TEST_F(RowChangesTest, ChangesCountUntilTheyAreAccepted) {
  RowChanges known = Begin();
  rows_[0] = -1;
  const auto first = Changes(known);
  EXPECT_EQ(Numbers(first), Expected({0}));
  rows_[kDim] = -1;
  EXPECT_EQ(Numbers(Changes(known)), Expected({0, 1}));  // the first checkpoint failed
  known.Accept(first);
  EXPECT_EQ(Numbers(Changes(known)), Expected({1}));
  known.Accept({1, 2}, Bytes(1));
  EXPECT_EQ(Numbers(Changes(known)), Expected());
}

}  // namespace
}  // namespace lockstep
