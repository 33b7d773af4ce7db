// Ranks that have no more data, and ranks that continue.

#include <gtest/gtest.h>

#include <future>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/named/named_lane.h"
#include "core/comm/named/test_lane.h"

namespace lockstep {
namespace {

// Tests in which two ranks have different parts, and tests for any number of ranks.
class NamedLaneJoinPairTest : public ::testing::TestWithParam<JobShape> {};
class NamedLaneJoinTest : public ::testing::TestWithParam<JobShape> {};

// All except one have joined: others of its host, and whole hosts.
TEST_P(NamedLaneJoinTest, JoinedRanksBringWhatChangesNothing) {
  for (int last = 0; last < GetParam().size; last += GetParam().size - 1) {
    RunRanks(GetParam(), [&](NamedLane& lane) {
      if (lane.rank() == last) {
        const auto ranks = static_cast<float>(lane.size());
        const std::vector<float> in = {3 * ranks, -2 * ranks};
        for (const NamedReduction reduction : {NamedReduction::kSum, NamedReduction::kMean, NamedReduction::kMin,
                                               NamedReduction::kMax, NamedReduction::kProduct}) {
          NamedRequest request = Request(NamedKind::kAllReduce, "x", {2});
          request.reduction = reduction;
          const std::vector<float> wanted = reduction == NamedReduction::kMean ? std::vector<float>{3, -2} : in;
          EXPECT_EQ(Ask(lane, request, in).get().As<float>(), wanted) << NamedReductionName(reduction);
        }
      }
      EXPECT_EQ(Ask(lane, Join(), kNothing).get().more.last_joined, last);
    });
  }
}

// A rank whose join is given up takes part again.
TEST_P(NamedLaneJoinPairTest, LetsARankGiveUpItsJoin) {
  LOCKSTEP_SKIP_WHERE_RANKS_HAVE_NO_MEMORY_IN_COMMON();
  std::promise<void> is_back;
  RunRanks(GetParam(), [&](NamedLane& lane) {
    if (lane.rank() == 1) {
      lane.CancelJoin("there is none");
      std::future<Outcome> joined = Ask(lane, Join(), kNothing);
      EXPECT_EQ(Await(lane, Join()), InvalidArgument("join: this rank already waits for one of this name"));
      lane.CancelJoin("interrupted");
      EXPECT_EQ(joined.get().status, Cancelled("rank 1: interrupted"));
      is_back.set_value();
    } else {
      is_back.get_future().wait();
    }
    const std::vector<float> in = {1};
    EXPECT_EQ(Ask(lane, Request(NamedKind::kAllReduce, "x", {1}), in).get().As<float>(), std::vector<float>{2});
    // A tensor named "join" does not disturb a join either.
    std::future<Outcome> tensor = Ask(lane, Request(NamedKind::kAllReduce, "join", {1}), in);
    EXPECT_EQ(Await(lane, Join()), OkStatus());
    EXPECT_EQ(tensor.get().status, OkStatus());
  });
}

// The number for calls without a name is the same on all ranks again.
TEST_P(NamedLaneJoinTest, CountsAnewBehindAJoin) {
  RunRanks(GetParam(), [](NamedLane& lane) {
    const std::vector<float> in = {1};
    const auto numbered = [&](NamedKind kind) {
      NamedRequest request = Request(kind, "", {1});
      request.family = NamedKindName(kind);
      request.name = StrCat(request.family, ".", lane.NextNumber(request.family));
      return Ask(lane, request, in).get();
    };
    // Each rank has less data than the rank before it.
    for (int i = lane.rank(); i < lane.size(); ++i) EXPECT_EQ(numbered(NamedKind::kAllReduce).status, OkStatus());
    if (lane.rank() == 0) {
      EXPECT_EQ(numbered(NamedKind::kAllGather).status.code(), StatusCode::kFailedPrecondition);
    }
    EXPECT_EQ(Ask(lane, Join(), kNothing).get().more.last_joined, 0);
    const auto ranks = static_cast<float>(lane.size());
    EXPECT_EQ(numbered(NamedKind::kAllReduce).As<float>(), std::vector<float>{ranks});
    EXPECT_EQ(numbered(NamedKind::kAllGather).As<float>(), std::vector<float>(lane.size(), 1));
  });
}

// A rank that came back too early missed numbers: they are errors for it, one by one, until it has caught up.
TEST_P(NamedLaneJoinPairTest, TellsWhoMissedNumbersByAJoinThatWasGivenUp) {
  LOCKSTEP_SKIP_WHERE_RANKS_HAVE_NO_MEMORY_IN_COMMON();
  std::promise<void> were_made, is_back;
  RunRanks(GetParam(), [&](NamedLane& lane) {
    const std::vector<float> in = {1};
    const auto numbered = [&] {
      NamedRequest request = Request(NamedKind::kAllReduce, "", {1});
      request.family = "allreduce";
      request.name = StrCat("allreduce.", lane.NextNumber("allreduce"));
      return Ask(lane, request, in).get();
    };
    if (lane.rank() == 0) {
      EXPECT_EQ(Await(lane, Barrier("joins")),
                FailedPrecondition("barrier 'joins': rank 1 has joined; only allreduce is allowed until all "
                                   "ranks have joined"));
      for (int i = 0; i < 2; ++i) EXPECT_EQ(numbered().As<float>(), std::vector<float>{1});
      were_made.set_value();
      is_back.get_future().wait();
    } else {
      std::future<Outcome> joined = Ask(lane, Join(), kNothing);
      were_made.get_future().wait();
      lane.CancelJoin("interrupted");
      EXPECT_EQ(joined.get().status.code(), StatusCode::kCancelled);
      is_back.set_value();
      for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(numbered().status,
                  FailedPrecondition(StrCat("allreduce 'allreduce.", i, "': it ran while this rank had joined")));
      }
    }
    EXPECT_EQ(numbered().As<float>(), std::vector<float>{2});
  });
}

// Earlier requests are done or end when the ranks have joined; they wait for no rank.
TEST_P(NamedLaneJoinPairTest, LeavesNothingBehindAJoin) {
  RunRanks(GetParam(), [](NamedLane& lane) {
    const std::vector<float> in = {1};
    std::vector<std::future<Outcome>> futures;
    if (lane.rank() == 1) {
      futures.push_back(Ask(lane, Request(NamedKind::kAllReduce, "sum", {1}), in));
      futures.push_back(Ask(lane, Request(NamedKind::kAllGather, "gather", {1}), in));
      for (auto& future : AskAll(lane, Group("g", {Request(NamedKind::kAllReduce, "a", {1}), Barrier("b")}), in)) {
        futures.push_back(std::move(future));
      }
    }
    EXPECT_EQ(Await(lane, Join()), OkStatus());
    if (lane.rank() == 0) return;
    EXPECT_EQ(futures[0].get().As<float>(), std::vector<float>{1});
    for (int i = 1; i < 4; ++i) {
      const Status status = futures[i].get().status;
      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status.ToString();
      EXPECT_TRUE(Contains(status, "rank 0 has joined")) << status.ToString();
    }
    EXPECT_EQ(lane.pending(), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, NamedLaneJoinTest, ::testing::ValuesIn(LanesOfSeveral()), JobShapeName);
INSTANTIATE_TEST_SUITE_P(Backends, NamedLaneJoinPairTest, ::testing::ValuesIn(LanePairs()), JobShapeName);

}  // namespace
}  // namespace lockstep
