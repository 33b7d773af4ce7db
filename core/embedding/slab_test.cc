#include "core/embedding/slab.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <thread>

namespace lockstep {
namespace {

TEST(Slab, RowsStayWhereTheyAre) {
  Slab slab;
  ASSERT_EQ(*slab.AddColumn(24), 0);
  std::vector<uint32_t> rows(1000), all;
  std::vector<char*> places;
  for (int i = 0; i < 300; ++i) {  // more than a chunk
    ASSERT_EQ(slab.Take(rows), OkStatus());
    for (const uint32_t row : rows) {
      all.push_back(row);
      places.push_back(slab.column(0)[row]);
      EXPECT_EQ(*places.back(), 0) << "fresh memory";
      std::memcpy(places.back(), &row, sizeof(row));
    }
  }
  ASSERT_EQ(*slab.AddColumn(4), 1);
  EXPECT_EQ(slab.end(), 300000);
  for (size_t i = 0; i < all.size(); ++i) {
    uint32_t row;
    std::memcpy(&row, places[i], sizeof(row));
    ASSERT_EQ(row, all[i]);
    ASSERT_EQ(slab.column(0)[row], places[i]);
    ASSERT_EQ(*slab.column(1)[row], 0) << "a column made later";
  }
}

TEST(Slab, NumbersAreGivenOutOnceAndAgain) {
  Slab slab;
  ASSERT_TRUE(slab.AddColumn(8).ok());
  std::vector<std::thread> threads;
  std::vector<std::vector<uint32_t>> taken(3);
  for (auto& mine : taken) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        std::vector<uint32_t> rows(1 + i % 50);
        ASSERT_EQ(slab.Take(rows), OkStatus());
        mine.insert(mine.end(), rows.begin(), rows.end());
        if (i % 3 == 0) {
          const std::vector<uint32_t> back(mine.end() - std::min<size_t>(mine.size(), 40), mine.end());
          mine.resize(mine.size() - back.size());
          slab.Give(back);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<uint32_t> distinct;
  size_t count = 0;
  for (const auto& mine : taken) {
    distinct.insert(mine.begin(), mine.end());
    count += mine.size();
  }
  EXPECT_EQ(distinct.size(), count);
  EXPECT_EQ(slab.taken(), static_cast<int64_t>(count));
  EXPECT_LE(slab.end(), static_cast<int64_t>(count) + 3 * 50);
}

}  // namespace
}  // namespace lockstep
