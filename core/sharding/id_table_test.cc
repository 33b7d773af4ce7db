#include "core/sharding/id_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

TEST(IdTable, NumbersIdsInOrderOfAppearance) {
  std::mt19937_64 random(7);
  for (int64_t capacity : {0, 1, 2, 15, 16, 17, 1000}) {
    for (int64_t range : {int64_t{3}, int64_t{500}, int64_t{1} << 62}) {
      IdTable table(capacity);
      std::map<int64_t, int32_t> expected;
      for (int64_t i = 0; i < capacity; ++i) {
        // Multiples of a power of two, half of them negative, which a weak hash would pile up. With the range of 3
        // nearly all of them are duplicates, with the range of 2^62 none.
        const int64_t id = (static_cast<int64_t>(random() % range) & ~int64_t{0xf}) - (i % 2 == 0 ? 0 : range / 2 + 16);
        const auto next = static_cast<int32_t>(expected.size());
        const int32_t number = table.FindOrInsert(id);
        EXPECT_EQ(number, expected.emplace(id, next).first->second);
        EXPECT_EQ(table.ids()[number], id);
      }
    }
  }
}

TEST(RowTable, NumbersRowsInTheOrderOfAppearance) {
  std::mt19937_64 random(7);
  for (int64_t rows : {1, 2, 30, 1000}) {
    for (int64_t count : {0, 1, 100}) {
      RowTable table(rows, count);
      std::map<int64_t, int32_t> expected;
      std::vector<int64_t> distinct;
      for (int64_t i = 0; i < count; ++i) {
        const auto row = static_cast<int64_t>(random() % rows);
        const auto [entry, is_new] = expected.emplace(row, static_cast<int32_t>(expected.size()));
        if (is_new) distinct.push_back(row);
        EXPECT_EQ(table.FindOrInsert(row), entry->second);
      }
      EXPECT_EQ(std::move(table).ids(), distinct);
    }
  }
}

}  // namespace
}  // namespace lockstep
