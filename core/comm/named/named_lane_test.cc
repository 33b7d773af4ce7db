#include "core/comm/named/named_lane.h"

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
#include <utility>
#include <vector>

#include "core/base/float16.h"
#include "core/base/strings.h"
#include "core/comm/named/test_lane.h"
#include "core/comm/rendezvous/rendezvous_wire.h"
#include "core/testing/long_tests.h"
#include "core/testing/oracle.h"

namespace lockstep {
namespace {

class NamedLaneTest : public ::testing::TestWithParam<JobShape> {};
class NamedLanePairTest : public ::testing::TestWithParam<JobShape> {};

// The calls of one rank.
class Calls {
 public:
  explicit Calls(NamedLane& lane) : lane_(lane) {}

  // Adds a call with `size` numbers of `value`. `check` gets its outcome.
  void Add(NamedRequest request, size_t size, float value, std::function<void(const Outcome&)> check) {
    calls_.push_back({std::move(request), std::vector<float>(size, value), std::move(check), {}});
  }

  // Makes the calls in a random order, and checks their outcomes.
  void Run(uint64_t seed) {
    std::shuffle(calls_.begin(), calls_.end(), std::mt19937_64(seed));
    for (Call& call : calls_) call.outcome = Ask(lane_, call.request, call.input);
    for (Call& call : calls_) call.check(call.outcome.get());
  }

 private:
  struct Call {
    NamedRequest request;
    std::vector<float> input;
    std::function<void(const Outcome&)> check;
    std::future<Outcome> outcome;
  };

  NamedLane& lane_;
  std::vector<Call> calls_;
};

// All ranks get the expected numbers; each rank makes its requests in any order.
TEST_P(NamedLaneTest, DoesWhatIsAskedForInAnyOrder) {
  const int ranks = GetParam().size;
  RunRanks(GetParam(), [&](NamedLane& lane) {
    const int rank = lane.rank();
    Calls calls(lane);
    for (int i = 0; i < 20; ++i) {
      const auto own = static_cast<float>(rank + i);
      const float sum = static_cast<float>(ranks * i) + static_cast<float>(ranks * (ranks - 1)) / 2;
      auto request = Request(NamedKind::kAllReduce, StrCat("sum", i), {i, 3});
      request.postscale = 0.5;
      calls.Add(request, i * 3, own, [i, sum](const Outcome& got) {
        EXPECT_EQ(got.status, OkStatus());
        EXPECT_EQ(got.As<float>(), std::vector<float>(i * 3, sum / 2));
      });
      request = Request(NamedKind::kAllGather, StrCat("gather", i), {rank + i % 3, 2});
      calls.Add(request, (rank + i % 3) * 2, own, [i, ranks](const Outcome& got) {
        std::vector<float> wanted;
        for (int r = 0; r < ranks; ++r) wanted.insert(wanted.end(), (r + i % 3) * 2, static_cast<float>(r + i));
        EXPECT_EQ(got.As<float>(), wanted);
        EXPECT_EQ(got.shape, (std::vector<int64_t>{static_cast<int64_t>(wanted.size()) / 2, 2}));
      });
      request = Request(NamedKind::kAllToAll, StrCat("alltoall", i), {ranks * (rank + 1), 1});
      request.splits.assign(ranks, rank + 1);
      calls.Add(request, ranks * (rank + 1), own, [i, ranks](const Outcome& got) {
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
      calls.Add(request, 5, own, [i, ranks](const Outcome& got) {
        EXPECT_EQ(got.As<float>(), std::vector<float>(5, static_cast<float>(i % ranks + i)));
      });
      request = Request(NamedKind::kReduceScatter, StrCat("scatter", i), {ranks + 1, 2});
      request.reduction = NamedReduction::kMean;
      calls.Add(request, (ranks + 1) * 2, own, [rank, ranks, sum](const Outcome& got) {
        const size_t rows = rank == 0 ? 2 : 1;
        EXPECT_EQ(got.As<float>(), std::vector<float>(rows * 2, sum / static_cast<float>(ranks)));
      });
    }
    calls.Run(rank);
    EXPECT_EQ(lane.pending(), 0);
  });
}

// Bit for bit, in the order in which a communicator of these ranks adds.
TEST_P(NamedLaneTest, ReducesEveryTypeInEveryWay) {
  const std::pair<NamedReduction, ReduceOp> reductions[] = {{NamedReduction::kSum, ReduceOp::kSum},
                                                            {NamedReduction::kMean, ReduceOp::kMean},
                                                            {NamedReduction::kMin, ReduceOp::kMin},
                                                            {NamedReduction::kMax, ReduceOp::kMax},
                                                            {NamedReduction::kProduct, ReduceOp::kProduct}};
  // Packed with others; and by itself, large enough to go through memory that the ranks share.
  constexpr int64_t kCounts[] = {7, 7, 20'000};
  RunRanks(GetParam(), [&](NamedLane& lane) {
    for (int d = 0; d < kDTypeCount; ++d) {
      const DType dtype = static_cast<DType>(d);
      std::vector<std::vector<std::string>> tensors;  // for each count, those of all ranks
      for (const int64_t count : kCounts) {
        std::vector<std::string>& of_ranks = tensors.emplace_back();
        for (int rank = 0; rank < lane.size(); ++rank) {
          of_ranks.push_back(testing::RandomTensor(dtype, count, 100 * d + 10 * rank + tensors.size()));
        }
      }
      for (const auto& [reduction, op] : reductions) {
        if (reduction == NamedReduction::kMean && !IsFloatingPoint(dtype)) continue;  // see below
        std::vector<NamedWork> works;
        std::vector<std::future<Outcome>> futures;
        for (size_t i = 0; i < std::size(kCounts); ++i) {
          NamedRequest request = Request(NamedKind::kAllReduce, StrCat("x", i), {kCounts[i]});
          request.dtype = dtype;
          request.reduction = reduction;
          auto [work, future] = WorkOf(request, static_cast<const void*>(tensors[i][lane.rank()].data()));
          works.push_back(std::move(work));
          futures.push_back(std::move(future));
        }
        lane.Submit(std::move(works));
        for (size_t i = 0; i < std::size(kCounts); ++i) {
          const Outcome got = futures[i].get();
          EXPECT_EQ(got.status, OkStatus());
          const std::string wanted = WantedReduction(GetParam(), op, dtype, tensors[i]);
          EXPECT_EQ(testing::FirstDifference(dtype, {got.bytes.begin(), got.bytes.end()}, wanted), "")
              << NamedReductionName(reduction) << " of " << DTypeName(dtype);
        }
      }
    }
  });
}

TEST_P(NamedLaneTest, CutsTheMeanOfIntegersOff) {
  RunRanks(GetParam(), [](NamedLane& lane) {
    NamedRequest request = Request(NamedKind::kAllReduce, "mean", {2});
    request.dtype = DType::kInt32;
    request.reduction = NamedReduction::kMean;
    // Half of the ranks, or one less, have 2; the others have 1.
    const std::vector<int32_t> in = {1 + lane.rank() % 2, -1 - lane.rank() % 2};
    EXPECT_EQ(Ask(lane, request, in).get().As<int32_t>(), (std::vector<int32_t>{1, -1}));
  });
}

TEST_P(NamedLaneTest, ScalesBeforeAndBehind) {
  RunRanks(GetParam(), [](NamedLane& lane) {
    const auto ranks = static_cast<float>(lane.size());
    NamedRequest request = Request(NamedKind::kAllReduce, "scaled", {1});
    request.dtype = DType::kBFloat16;
    request.prescale = 0.25;
    request.postscale = 8;
    const std::vector<uint16_t> in = {FloatToBFloat16(static_cast<float>(1 + lane.rank()))};
    EXPECT_EQ(BFloat16ToFloat(Ask(lane, request, in).get().As<uint16_t>()[0]), ranks * (ranks + 1));
    request = Request(NamedKind::kReduceScatter, "scaled too", {lane.size()});
    request.prescale = 2;
    std::vector<float> all(lane.size());
    std::iota(all.begin(), all.end(), 1.0f);
    const float own = all[lane.rank()];
    EXPECT_EQ(Ask(lane, request, all).get().As<float>(), std::vector<float>{2 * own * ranks});
  });
}

// Rank 0 listens before the others get the address, as when a port is picked at run time.
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
      if (rank == 0) context.listener = listener->get();
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
TEST_P(NamedLanePairTest, TakesThousandsOfRequestsAtOnce) {
  RunRanks(GetParam(), [](NamedLane& lane) {
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

// TensorFlow's threads treat numbers near zero as zero; other threads do not. Whichever thread drives, all ranks get
// the same bits.
TEST_P(NamedLaneTest, GivesTheSameBitsWhateverTheModeOfItsCallers) {
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  RunRanks(GetParam(), [&](NamedLane& lane) {
    if (lane.rank() == 0) _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
    const uint32_t bits = 71362;  // 1e-40
    std::vector<float> in(1);
    std::memcpy(in.data(), &bits, sizeof(bits));
    for (int i = 0; i < 20; ++i) {
      // In turn, one rank or the other is late: a caller drives, or the thread.
      if (i % 3 == lane.rank() % 3) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      const Outcome got = Ask(lane, Request(NamedKind::kAllReduce, "x", {1}), in).get();
      EXPECT_EQ(got.As<uint32_t>(), std::vector<uint32_t>{lane.size() * bits});
    }
  });
}

// The callbacks of a request may make more requests, to this lane and to others, whose drivers may do the same.
TEST_P(NamedLanePairTest, MayBeAskedForMoreByWhatItAnswers) {
  const std::string other_address = testing::NextRendezvousAddress();
  RunRanks(GetParam(), [&](NamedLane& lane) {
    NamedLaneOptions options;
    options.label = "other";
    auto other = CreateLane(JobOptions(GetParam(), other_address, lane.rank()), options);
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

// So many bytes that no single message holds them, while exchanges continue that need rank 0.
TEST_P(NamedLanePairTest, TakesLongMessagesWhileItExchanges) {
  // The place of the tensors does not matter to messages, and exchanges on emulated devices take long.
  if (!GetParam().device.empty() && !testing::RunsLongTests()) GTEST_SKIP() << "it is a long test on devices";
  RunRanks(GetParam(), [](NamedLane& lane) {
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

INSTANTIATE_TEST_SUITE_P(Backends, NamedLaneTest, ::testing::ValuesIn(LaneShapes()), JobShapeName);
INSTANTIATE_TEST_SUITE_P(Backends, NamedLanePairTest, ::testing::ValuesIn(LanePairs()), JobShapeName);

}  // namespace
}  // namespace lockstep
