#include "core/comm/job/lane.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

TEST(LaneTest, RunsAllWorkInTheOrderOfPosting) {
  std::vector<int> order;
  {
    Lane lane;
    for (int i = 0; i < 1000; ++i) lane.Post([&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
}

// Without spinning every Post has to find the sleeper, at different times around its falling asleep.
TEST(LaneTest, WakesUpAfterALongSleep) {
  Lane lane(/*spin_us=*/0);
  for (int i = 0; i < 20; ++i) {
    std::promise<void> done;
    std::this_thread::sleep_for(std::chrono::milliseconds(i % 3));
    lane.Post([&] { done.set_value(); });
    EXPECT_EQ(done.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  }
}

TEST(LaneTest, WorkOfSeveralThreadsKeepsTheOrderOfEach) {
  constexpr int kThreads = 4, kEach = 2000;
  std::vector<int> next(kThreads, 0);
  bool in_order = true;
  {
    Lane lane;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kEach; ++i) lane.Post([&, t, i] { in_order &= next[t]++ == i; });
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_TRUE(in_order);
  for (int count : next) EXPECT_EQ(count, kEach);
}

TEST(LaneTest, WorkMayPostMoreWork) {
  std::promise<int> done;
  Lane lane;
  lane.Post([&] { lane.Post([&] { done.set_value(7); }); });
  EXPECT_EQ(done.get_future().get(), 7);
}

// As when a kernel holds the last reference to a context that was shut down.
TEST(LaneTest, WorkMayHoldTheLastReferenceToTheLane) {
  std::promise<void> posted, done;
  auto lane = std::make_shared<Lane>();
  lane->Post([lane, &posted, &done]() mutable {
    posted.get_future().wait();
    lane.reset();
    done.set_value();
  });
  lane.reset();
  posted.set_value();
  EXPECT_EQ(done.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

}  // namespace
}  // namespace lockstep
