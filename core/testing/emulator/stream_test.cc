#include "core/testing/emulator/stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace lockstep::emulator {
namespace {

// Work that ends when the test opens the gate.
class Gate {
 public:
  std::function<void()> work() {
    return [this] { is_open_.wait(false); };
  }
  void Open() {
    is_open_ = true;
    is_open_.notify_all();
  }

 private:
  std::atomic<bool> is_open_ = false;
};

TEST(StreamTest, RunsWorkInOrderAndLater) {
  Gate gate;
  Stream stream(0);
  std::vector<int> order;
  stream.Post(gate.work());
  for (int i = 0; i < 10; ++i) stream.Post([&order, i] { order.push_back(i); });
  EXPECT_FALSE(stream.is_idle());
  gate.Open();
  stream.Drain();
  EXPECT_TRUE(stream.is_idle());
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(StreamTest, ItsEndRunsWhatWasPosted) {
  int count = 0;
  {
    Stream stream(0);
    for (int i = 0; i < 10; ++i) stream.Post([&count] { ++count; });
  }
  EXPECT_EQ(count, 10);
}

TEST(StreamTest, DelaysEachPieceOfWork) {
  Stream stream(20'000);
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<int> count = 0;
  for (int i = 0; i < 3; ++i) stream.Post([&count] { ++count; });
  EXPECT_EQ(count, 0);
  stream.Drain();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(60));
}

TEST(EventTest, ANewOneHasPassed) {
  Stream stream(0);
  Event event;
  EXPECT_TRUE(event.has_passed());
  event.Synchronize();
  event.LetWait(stream);
  stream.Drain();
  EXPECT_EQ(event.passed_ns(), 0);
}

TEST(EventTest, OrdersTwoStreams) {
  Gate gate;
  Stream first(0), second(0);
  int value = 0, seen = -1;
  first.Post(gate.work());
  first.Post([&value] { value = 1; });
  auto event = std::make_unique<Event>();
  event->Record(first);
  event->LetWait(second);
  second.Post([&] { seen = value; });
  EXPECT_FALSE(event->has_passed());
  event.reset();  // pending work keeps its point
  EXPECT_FALSE(second.is_idle());
  gate.Open();
  second.Drain();
  EXPECT_EQ(seen, 1);
}

TEST(EventTest, AWaitIsForTheLatestPointAtItsTime) {
  Gate gate;
  Stream fast(0), slow(0), waiting(0);
  Event event;
  event.Record(fast);
  event.LetWait(waiting);
  slow.Post(gate.work());
  event.Record(slow);
  waiting.Drain();  // it does not wait for the second point
  EXPECT_FALSE(event.has_passed());
  gate.Open();
  event.Synchronize();
  EXPECT_TRUE(event.has_passed());
  EXPECT_GT(event.passed_ns(), 0);
}

}  // namespace
}  // namespace lockstep::emulator
