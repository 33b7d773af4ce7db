#include "core/base/shared_ranges.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

TEST(SharedRanges, ThreadsTakeEveryItemOnce) {
  for (const int64_t count : {0, 1, 7, 1000, 1001}) {
    for (const int helpers : {0, 1, 3}) {
      std::vector<int> seen(count);
      const SharedRanges::Work work = [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++seen[i];
      };
      const auto ranges = std::make_shared<SharedRanges>(count, 7, work);
      EXPECT_EQ(ranges->size(), (count + 6) / 7);
      std::vector<std::thread> threads;
      for (int i = 0; i < helpers; ++i) threads.emplace_back([ranges] { ranges->Take(); });
      ranges->Take();
      ranges->Wait();
      EXPECT_EQ(seen, std::vector<int>(count, 1)) << count << " items, " << helpers << " helpers";
      for (std::thread& thread : threads) thread.join();
    }
  }
}

TEST(SharedRanges, NobodyWaitsForAHelperThatDoesNotCome) {
  std::shared_ptr<SharedRanges> ranges;
  int done = 0;
  {
    const SharedRanges::Work work = [&](int64_t begin, int64_t end) { done += static_cast<int>(end - begin); };
    ranges = std::make_shared<SharedRanges>(10, 3, work);
    ranges->Take();
    ranges->Wait();
  }
  std::thread late([ranges] { ranges->Take(); });  // `work` is destroyed
  late.join();
  EXPECT_EQ(done, 10);
}

}  // namespace
}  // namespace lockstep
