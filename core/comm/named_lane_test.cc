#include "core/comm/named_lane.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/float16.h"
#include "core/base/strings.h"
#include "core/comm/rendezvous_wire.h"
#include "core/comm/test_job.h"

namespace lockstep {
namespace {

// What became of a request.
struct Outcome {
  Status status;
  std::vector<int64_t> shape;
  std::vector<char> bytes;
  NamedWork::Outcome more;

  template <typename T>
  std::vector<T> As() const {
    const auto* data = reinterpret_cast<const T*>(bytes.data());
    return {data, data + bytes.size() / sizeof(T)};
  }
};

// Asks for something and gives a future of what comes of it. `in` has to live until then.
template <typename T>
std::future<Outcome> Ask(NamedLane& lane, NamedRequest request, const std::vector<T>& in) {
  auto outcome = std::make_shared<Outcome>();
  auto promise = std::make_shared<std::promise<Outcome>>();
  NamedWork work;
  work.in = in.data();
  work.allocate = [outcome, size = DTypeSize(request.dtype)](std::span<const int64_t> shape) -> Result<void*> {
    outcome->shape.assign(shape.begin(), shape.end());
    outcome->bytes.resize(std::accumulate(shape.begin(), shape.end(), size, std::multiplies<>()));
    return static_cast<void*>(outcome->bytes.data());
  };
  work.done = [outcome, promise](const Status& status, const NamedWork::Outcome& more) {
    outcome->status = status;
    outcome->more = more;
    promise->set_value(std::move(*outcome));
  };
  work.request = std::move(request);
  std::future<Outcome> future = promise->get_future();
  lane.Submit(std::move(work));
  return future;
}

NamedRequest Request(NamedKind kind, const std::string& name, std::vector<int64_t> shape) {
  NamedRequest request;
  request.kind = kind;
  request.name = name;
  request.shape = std::move(shape);
  return request;
}

const std::vector<float> kNothing;

using LanePart = std::function<void(NamedLane& lane)>;

// Each rank on a thread of its own; the parts may use EXPECT.
void RunRanks(int ranks, const LanePart& part, const NamedLaneOptions& options = {}) {
  const std::string address = testing::FreeLocalAddress();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto lane = NamedLane::Create(JobOptions({"shm", ranks}, address, rank), options);
      ASSERT_TRUE(lane.ok()) << lane.status().ToString();
      part(**lane);
      // Nobody leaves while others need it.
      const Outcome end = Ask(**lane, Request(NamedKind::kBarrier, "end of the test", {}), kNothing).get();
      (void)end;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

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

// Every rank hears of it, and goes on.
TEST(NamedLane, TellsAllRanksWhatIsWrong) {
  struct Case {
    NamedRequest request;
    std::function<void(NamedRequest&)> change;  // on rank 1
    StatusCode code;
    std::string text;
  };
  const auto all_to_all = [](std::vector<int64_t> splits) {
    NamedRequest request = Request(NamedKind::kAllToAll, "x", {4});
    request.splits = std::move(splits);
    return request;
  };
  const std::vector<Case> cases = {
      {Request(NamedKind::kAllReduce, "x", {4}),
       [](NamedRequest& r) {
         r.shape = {2, 2};
       },
       StatusCode::kFailedPrecondition, "shape: rank 0 has [4]; rank 1 has [2,2]"},
      {all_to_all({2, 2}),
       [](NamedRequest& r) {
         r.splits = {-1, 2};
       },
       StatusCode::kInvalidArgument, "rank 1: alltoall 'x': a split is -1"},
      {all_to_all({2, 2}),
       [](NamedRequest& r) {
         r.splits = {3, 2};
       },
       StatusCode::kInvalidArgument, "splits of [3,2], wanted at most the 4 rows"},
      {all_to_all({2, 2}), [](NamedRequest& r) { r.splits = {4}; }, StatusCode::kInvalidArgument,
       "got 1 splits, wanted one for each of 2 ranks"},
      {Request(NamedKind::kAllGather, "x", {4}), [](NamedRequest& r) { r.shape = {}; }, StatusCode::kInvalidArgument,
       "got a scalar"},
      {Request(NamedKind::kBroadcast, "x", {4}), [](NamedRequest& r) { r.root = 2; }, StatusCode::kInvalidArgument,
       "root is 2, wanted 0 to 1"},
  };
  RunRanks(2, [&](NamedLane& lane) {
    for (const Case& c : cases) {
      NamedRequest request = c.request;
      if (lane.rank() == 1) c.change(request);
      const std::vector<float> in(4, 1);
      const Status status = Ask(lane, request, in).get().status;
      EXPECT_EQ(status.code(), c.code) << status.ToString();
      EXPECT_NE(status.message().find(c.text), std::string::npos) << status.ToString();
    }
    const std::vector<float> in(4, 1);
    EXPECT_EQ(Ask(lane, cases[0].request, in).get().As<float>(), std::vector<float>(4, 2));
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

TEST(NamedLane, RefusesANameThatIsWaitedFor) {
  RunRanks(2, [](NamedLane& lane) {
    if (lane.rank() != 0) return;
    std::future<Outcome> first = Ask(lane, Request(NamedKind::kBarrier, "x", {}), kNothing);
    const Status status = Ask(lane, Request(NamedKind::kBarrier, "x", {}), kNothing).get().status;
    EXPECT_EQ(status, InvalidArgument("barrier 'x': this rank waits for one of that name already"));
    lane.Leave();
    EXPECT_EQ(first.get().status.code(), StatusCode::kCancelled);
  });
}

TEST(NamedLane, LetsARankStopWaiting) {
  RunRanks(2, [](NamedLane& lane) {
    if (lane.rank() == 1) {
      std::promise<Status> ended;
      NamedWork work;
      work.request = Request(NamedKind::kBarrier, "x", {});
      work.done = [&](const Status& status, const NamedWork::Outcome&) { ended.set_value(status); };
      const uint64_t ticket = lane.Submit(std::move(work));
      lane.Cancel(ticket, "the step was cancelled");
      EXPECT_EQ(ended.get_future().get(), Cancelled("rank 1: the step was cancelled"));
      lane.Cancel(ticket, "nobody listens");
    }
    EXPECT_EQ(Ask(lane, Request(NamedKind::kBarrier, "behind", {}), kNothing).get().status, OkStatus());
  });
}

TEST(NamedLane, JoinedRanksBringWhatChangesNothing) {
  RunRanks(2, [](NamedLane& lane) {
    if (lane.rank() == 0) {
      const std::vector<float> in = {3, -2};
      const std::pair<NamedReduction, std::vector<float>> wanted[] = {{NamedReduction::kSum, {3, -2}},
                                                                      {NamedReduction::kMean, {1.5, -1}},
                                                                      {NamedReduction::kMin, {3, -2}},
                                                                      {NamedReduction::kMax, {3, -2}},
                                                                      {NamedReduction::kProduct, {3, -2}}};
      for (const auto& [reduction, values] : wanted) {
        NamedRequest request = Request(NamedKind::kAllReduce, "x", {2});
        request.reduction = reduction;
        EXPECT_EQ(Ask(lane, request, in).get().As<float>(), values) << NamedReductionName(reduction);
      }
    }
    EXPECT_EQ(Ask(lane, Request(NamedKind::kJoin, "", {}), kNothing).get().more.last_joined, 0);
  });
}

TEST(NamedLane, WarnsOfRanksThatDoNotComeAndGivesUp) {
  std::mutex mutex;
  std::vector<std::string> warnings;
  NamedLaneOptions options;
  options.stall_warning_s = 0.05;
  options.stall_timeout_s = 0.3;
  options.warn = [&](const std::string& text) {
    const std::lock_guard lock(mutex);
    warnings.push_back(text);
  };
  RunRanks(
      2,
      [](NamedLane& lane) {
        if (lane.rank() == 1) {
          const Status status = Ask(lane, Request(NamedKind::kBarrier, "x", {}), kNothing).get().status;
          EXPECT_EQ(status, DeadlineExceeded("barrier 'x': rank 0 did not ask for it in 0 s"));
        } else {
          std::this_thread::sleep_for(std::chrono::milliseconds(600));
        }
      },
      options);
  ASSERT_FALSE(warnings.empty());
  EXPECT_EQ(warnings[0], "barrier 'x': rank 0 did not ask for it in 0 s, others wait");
}

TEST(NamedLane, EndsForAllWhenARankLeaves) {
  const std::string address = testing::FreeLocalAddress();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      auto lane = NamedLane::Create(JobOptions({"shm", 3}, address, rank), {});
      ASSERT_TRUE(lane.ok()) << lane.status().ToString();
      EXPECT_EQ(Ask(**lane, Request(NamedKind::kBarrier, "start", {}), kNothing).get().status, OkStatus());
      if (rank == 2) return;
      for (int i = 0; i < 2; ++i) {
        const Status status = Ask(**lane, Request(NamedKind::kBarrier, "x", {}), kNothing).get().status;
        EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
        EXPECT_NE(status.message().find("rank 2 left the job"), std::string::npos) << status.ToString();
      }
      // Rank 1 needs rank 0 to hear of it.
      std::this_thread::sleep_for(std::chrono::milliseconds(rank == 0 ? 200 : 0));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A death, as processes: named within seconds, whether the rank is waited for in the sequencer or in an exchange.
TEST(NamedLaneProcesses, NameTheRankThatDied) {
  for (const int victim : {0, 1}) {
    testing::Ranks ranks(3, [victim, address = testing::FreeLocalAddress()](int rank, const auto& report) {
      auto lane = NamedLane::Create(JobOptions({"shm", 3}, address, rank), {});
      if (!lane.ok()) return report(lane.status().ToString()), 1;
      if (!Ask(**lane, Request(NamedKind::kBarrier, "start", {}), kNothing).get().status.ok()) return 1;
      if (rank == victim) raise(SIGKILL);
      const Status status = Ask(**lane, Request(NamedKind::kBarrier, "x", {}), kNothing).get().status;
      report(status.ToString());
      const bool named = status.message().find(StrCat("rank ", victim, " died")) != std::string::npos;
      // The others hear of it from rank 0.
      std::this_thread::sleep_for(std::chrono::milliseconds(rank == 0 ? 300 : 0));
      return status.code() == StatusCode::kUnavailable && named ? 0 : 1;
    });
    const std::vector<testing::Outcome> outcomes = ranks.Wait(kJobDeadline_s, {victim});
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(outcomes[rank].exit_code, 0) << rank << ": " << outcomes[rank].report;
    }
  }
}

}  // namespace
}  // namespace lockstep
