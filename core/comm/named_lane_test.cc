#include "core/comm/named_lane.h"

#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/float16.h"
#include "core/base/strings.h"
#include "core/comm/rendezvous_wire.h"
#include "core/comm/test_lane.h"

namespace lockstep {
namespace {

class NamedLaneTest : public ::testing::TestWithParam<int> {};

// Whatever the order in which ranks ask, everybody gets what numbers say.
TEST_P(NamedLaneTest, DoesWhatIsAskedForInAnyOrder) {
  const int ranks = GetParam();
  RunRanks(ranks, [&](NamedLane& lane) {
    const int rank = lane.rank();
    std::vector<std::function<void()>> asks;
    std::vector<std::function<void()>> checks;
    std::vector<std::shared_ptr<std::vector<float>>> inputs;
    std::vector<std::future<Outcome>> futures(100);
    const auto input = [&](size_t size, float value) -> const std::vector<float>& {
      return *inputs.emplace_back(std::make_shared<std::vector<float>>(size, value));
    };
    for (int i = 0; i < 20; ++i) {
      const auto own = static_cast<float>(rank + i);
      const float sum = static_cast<float>(ranks * i) + static_cast<float>(ranks * (ranks - 1)) / 2;
      auto request = Request(NamedKind::kAllReduce, StrCat("sum", i), {i, 3});
      request.postscale = 0.5;
      asks.emplace_back([&, i, request, &in = input(i * 3, own)] { futures[i] = Ask(lane, request, in); });
      checks.emplace_back([&, i, sum] {
        const Outcome got = futures[i].get();
        EXPECT_EQ(got.status, OkStatus());
        EXPECT_EQ(got.As<float>(), std::vector<float>(i * 3, sum / 2));
      });
      request = Request(NamedKind::kAllGather, StrCat("gather", i), {rank + i % 3, 2});
      asks.emplace_back(
          [&, i, request, &in = input((rank + i % 3) * 2, own)] { futures[20 + i] = Ask(lane, request, in); });
      checks.emplace_back([&, i] {
        const Outcome got = futures[20 + i].get();
        std::vector<float> wanted;
        for (int r = 0; r < ranks; ++r) wanted.insert(wanted.end(), (r + i % 3) * 2, static_cast<float>(r + i));
        EXPECT_EQ(got.As<float>(), wanted);
        EXPECT_EQ(got.shape, (std::vector<int64_t>{static_cast<int64_t>(wanted.size()) / 2, 2}));
      });
      request = Request(NamedKind::kAllToAll, StrCat("alltoall", i), {ranks * (rank + 1), 1});
      request.splits.assign(ranks, rank + 1);
      asks.emplace_back(
          [&, i, request, &in = input(ranks * (rank + 1), own)] { futures[40 + i] = Ask(lane, request, in); });
      checks.emplace_back([&, i] {
        const Outcome got = futures[40 + i].get();
        std::vector<float> wanted;
        std::vector<int64_t> received;
        for (int r = 0; r < ranks; ++r) {
          wanted.insert(wanted.end(), r + 1, static_cast<float>(r + i));
          received.push_back(r + 1);
        }
        EXPECT_EQ(got.As<float>(), wanted);
        EXPECT_EQ(got.more.received, received);
      });
      request = Request(NamedKind::kBroadcast, StrCat("broadcast", i), {5});
      request.root = i % ranks;
      asks.emplace_back([&, i, request, &in = input(5, own)] { futures[60 + i] = Ask(lane, request, in); });
      checks.emplace_back([&, i] {
        EXPECT_EQ(futures[60 + i].get().As<float>(), std::vector<float>(5, static_cast<float>(i % ranks + i)));
      });
      request = Request(NamedKind::kReduceScatter, StrCat("scatter", i), {ranks + 1, 2});
      request.reduction = NamedReduction::kMean;
      asks.emplace_back(
          [&, i, request, &in = input((ranks + 1) * 2, own)] { futures[80 + i] = Ask(lane, request, in); });
      checks.emplace_back([&, i, sum] {
        const size_t rows = rank == 0 ? 2 : 1;
        EXPECT_EQ(futures[80 + i].get().As<float>(), std::vector<float>(rows * 2, sum / static_cast<float>(ranks)));
      });
    }
    std::shuffle(asks.begin(), asks.end(), std::mt19937_64(rank));
    for (const auto& ask : asks) ask();
    for (const auto& check : checks) check();
    EXPECT_EQ(lane.pending(), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, NamedLaneTest, ::testing::Values(1, 2, 4));

TEST(NamedLane, CutsTheMeanOfIntegersOff) {
  RunRanks(2, [](NamedLane& lane) {
    NamedRequest request = Request(NamedKind::kAllReduce, "mean", {2});
    request.dtype = DType::kInt32;
    request.reduction = NamedReduction::kMean;
    const std::vector<int32_t> in = {1 + lane.rank(), -1 - lane.rank()};
    EXPECT_EQ(Ask(lane, request, in).get().As<int32_t>(), (std::vector<int32_t>{1, -1}));
  });
}

TEST(NamedLane, ScalesBeforeAndBehind) {
  RunRanks(2, [](NamedLane& lane) {
    NamedRequest request = Request(NamedKind::kAllReduce, "scaled", {1});
    request.dtype = DType::kBFloat16;
    request.prescale = 0.25;
    request.postscale = 8;
    const std::vector<uint16_t> in = {FloatToBFloat16(static_cast<float>(1 + lane.rank()))};
    EXPECT_EQ(BFloat16ToFloat(Ask(lane, request, in).get().As<uint16_t>()[0]), 6);
    request = Request(NamedKind::kReduceScatter, "scaled too", {2});
    request.prescale = 2;
    const std::vector<float> both = {1, 10};
    EXPECT_EQ(Ask(lane, request, both).get().As<float>(), std::vector<float>{lane.rank() == 0 ? 4.0f : 40.0f});
  });
}

// Rank 0 listens before the others are told where, as where a port is picked at run time.
TEST(NamedLane, MeetsAtAListenerThatIsThere) {
  const std::string address = testing::FreeLocalAddress();
  const Result<UniqueFd> listener = wire::Listen(address);
  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  NamedLaneOptions options;
  options.label = "process set 2";
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ContextOptions context = JobOptions({"shm", 2}, address, rank);
      context.listener = rank == 0 ? listener->get() : -1;
      const auto lane = NamedLane::Create(context, options);
      ASSERT_TRUE(lane.ok()) << lane.status().ToString();
      EXPECT_EQ((*lane)->label(), "process set 2");
      for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ((*lane)->NextNumber("x"), i);
      EXPECT_EQ((*lane)->NextNumber("y"), 0u);
      EXPECT_EQ(Ask(**lane, Request(NamedKind::kBarrier, "x", {}), kNothing).get().status, OkStatus());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(NamedLane, DoesNotMeetWhoCameForSomethingElse) {
  const std::string address = testing::FreeLocalAddress();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const ContextOptions context = JobOptions({"shm", 2}, address, rank);
      const Status status = rank == 0 ? NamedLane::Create(context, {}).status() : Context::Create(context).status();
      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
      for (const char* text : {"rank 0 has named lane, backend", "rank 1 has engine, backend"}) {
        EXPECT_NE(status.message().find(text), std::string::npos) << status.ToString();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// More than a socket takes at once.
TEST(NamedLane, TakesThousandsOfRequestsAtOnce) {
  RunRanks(2, [](NamedLane& lane) {
    constexpr int kCount = 5000;
    std::atomic<int> right = 0;
    std::promise<void> all;
    std::vector<float> in(kCount, 1), out(kCount);
    std::vector<NamedWork> works(kCount);
    for (int i = 0; i < kCount; ++i) {
      NamedWork& work = works[i];
      work.request = Request(NamedKind::kAllReduce, StrCat("gradient of some layer ", i), {});
      work.in = &in[i];
      work.allocate = [&, i](std::span<const int64_t>) -> Result<void*> { return static_cast<void*>(&out[i]); };
      work.done = [&, i](const Status& status, const NamedWork::Outcome&) {
        if (status.ok() && out[i] == 2 && ++right == kCount) all.set_value();
      };
    }
    lane.Submit(std::move(works));
    EXPECT_EQ(all.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready) << right;
  });
}

// TensorFlow's threads take numbers near zero for zero, others don't. Whoever drives: all ranks get the same bits.
TEST(NamedLane, GivesTheSameBitsWhateverTheModeOfItsCallers) {
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  RunRanks(2, [&](NamedLane& lane) {
    if (lane.rank() == 0) _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
    const uint32_t bits = 71362;  // 1e-40
    std::vector<float> in(1);
    std::memcpy(in.data(), &bits, sizeof(bits));
    for (int i = 0; i < 20; ++i) {
      // Now the one rank is late, now the other: a caller drives, or the thread.
      if (i % 3 == lane.rank()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      const Outcome got = Ask(lane, Request(NamedKind::kAllReduce, "x", {1}), in).get();
      EXPECT_EQ(got.As<uint32_t>(), std::vector<uint32_t>{2 * bits});
    }
  });
}

// What answers a request may ask for more, of this lane and of others, whose drivers may be doing the same.
TEST(NamedLane, MayBeAskedForMoreByWhatItAnswers) {
  const std::string other_address = testing::FreeLocalAddress();
  RunRanks(2, [&](NamedLane& lane) {
    NamedLaneOptions options;
    options.label = "other";
    auto other = NamedLane::Create(JobOptions({"shm", 2}, other_address, lane.rank()), options);
    ASSERT_TRUE(other.ok()) << other.status().ToString();
    const auto ask = [](NamedLane& first, NamedLane& second, int i) {
      auto ended = std::make_shared<std::promise<Status>>();
      auto [work, unused] = WorkOf(Barrier(StrCat("first", i)), kNothing);
      work.done = [&second, ended, i](const Status& status, const NamedWork::Outcome&) {
        auto [next, unused_too] = WorkOf(Barrier(StrCat("second", i)), kNothing);
        next.done = [ended, status](const Status& then, const NamedWork::Outcome&) {
          ended->set_value(status.ok() ? then : status);
        };
        second.Submit(std::move(next));
      };
      first.Submit(std::move(work));
      return ended->get_future();
    };
    std::thread beside([&] {
      for (int i = 0; i < 200; ++i) EXPECT_EQ(ask(**other, lane, i).get(), OkStatus());
    });
    for (int i = 1000; i < 1200; ++i) EXPECT_EQ(ask(lane, **other, i).get(), OkStatus());
    beside.join();
    EXPECT_EQ(Await(**other, Barrier("end")), OkStatus());
  });
}

// As many bytes of them as no single message takes well, while exchanges go on that need rank 0.
TEST(NamedLane, TakesLongMessagesWhileItExchanges) {
  RunRanks(2, [](NamedLane& lane) {
    std::thread exchanges([&] {
      const std::vector<float> in = {1};
      // Each rank ends with the same one.
      for (int i = 0; i < 300; ++i) {
        EXPECT_EQ(Ask(lane, Request(NamedKind::kAllReduce, StrCat("sum", i), {1}), in).get().As<float>(),
                  std::vector<float>{2});
      }
    });
    const std::string long_name(20'000, 'n');
    std::vector<NamedRequest> requests;
    for (int i = 0; i < 1500; ++i) requests.push_back(Barrier(StrCat(i, long_name)));
    for (auto& outcome : AskAll(lane, requests, kNothing)) EXPECT_EQ(outcome.get().status, OkStatus());
    exchanges.join();
  });
}

}  // namespace
}  // namespace lockstep
