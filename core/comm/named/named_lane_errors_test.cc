// Wrong requests: every rank gets the error, and the lane continues.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/strings.h"
#include "core/comm/named/named_lane.h"
#include "core/comm/named/test_lane.h"

namespace lockstep {
namespace {

class NamedLaneErrorsTest : public ::testing::TestWithParam<JobShape> {};

// Every rank gets the error and continues.
TEST_P(NamedLaneErrorsTest, TellsAllRanksWhatIsWrong) {
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
  RunRanks(GetParam(), [&](NamedLane& lane) {
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

TEST_P(NamedLaneErrorsTest, RefusesANameThatIsWaitedFor) {
  RunRanks(GetParam(), [](NamedLane& lane) {
    if (lane.rank() != 0) return;
    std::future<Outcome> first = Ask(lane, Request(NamedKind::kBarrier, "x", {}), kNothing);
    const Status status = Ask(lane, Request(NamedKind::kBarrier, "x", {}), kNothing).get().status;
    EXPECT_EQ(status, InvalidArgument("barrier 'x': this rank already waits for one of this name"));
    lane.Leave();
    EXPECT_EQ(first.get().status.code(), StatusCode::kCancelled);
  });
}

// If one member is already waited for, or its name is too long, no member of the group is requested.
TEST_P(NamedLaneErrorsTest, RefusesGroupsWhole) {
  RunRanks(GetParam(), [](NamedLane& lane) {
    const auto refused = [&](std::vector<NamedRequest> members, const std::string& text) {
      for (auto& outcome : AskAll(lane, Group("g", std::move(members)), kNothing)) {
        const Status status = outcome.get().status;
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
        EXPECT_TRUE(Contains(status, text)) << status.ToString();
      }
    };
    refused({Barrier("x"), Barrier("y"), Barrier("x")}, "barrier 'x': requested twice at once");
    refused({Barrier("x"), Barrier(std::string(kMostNameBytes + 1, 'n'))},
            "a name of 65537 bytes, wanted at most 65536");
    if (lane.rank() == 0) {
      std::future<Outcome> first = Ask(lane, Barrier("x"), kNothing);
      refused({Barrier("y"), Barrier("x")}, "barrier 'x': this rank already waits for one of this name");
      EXPECT_EQ(Await(lane, Barrier("meanwhile")), OkStatus());
      EXPECT_EQ(first.get().status, OkStatus());
    } else {
      EXPECT_EQ(Await(lane, Barrier("meanwhile")), OkStatus());
      EXPECT_EQ(Await(lane, Barrier("x")), OkStatus());
    }
  });
}

TEST_P(NamedLaneErrorsTest, LetsARankStopWaiting) {
  RunRanks(GetParam(), [](NamedLane& lane) {
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

// A cancellation ends only its own request, and not the next one of that name. This holds before rank 0 has made the
// request, while the answer is on its way, and after the end.
TEST_P(NamedLaneErrorsTest, CancelsNothingElseOfThatName) {
  RunRanks(GetParam(), [](NamedLane& lane) {
    for (int i = 0; i < 200; ++i) {
      if (lane.rank() == 0) {
        EXPECT_EQ(Await(lane, Barrier("x")), OkStatus());
        continue;
      }
      auto [work, ended] = WorkOf(Barrier("x"), kNothing);
      const uint64_t ticket = lane.Submit(std::move(work));
      std::thread late([&lane, ticket] { lane.Cancel(ticket, "late"); });
      const Status status = ended.get().status;
      EXPECT_TRUE(status.ok() || status == Cancelled("rank 1: late")) << status.ToString();
      // If this was over before rank 0 made the request, rank 0 waits for another one.
      if (!status.ok()) {
        EXPECT_EQ(Await(lane, Barrier("x")), OkStatus());
      }
      late.join();
    }
  });
}

// An error of one member ends all of them, on all ranks, and each one once.
TEST_P(NamedLaneErrorsTest, EndsGroupsWhole) {
  LOCKSTEP_SKIP_WHERE_RANKS_HAVE_NO_MEMORY_IN_COMMON();
  NamedLaneOptions options;
  options.stall_warning_s = std::nullopt;
  // Long enough for a busy machine: ranks that make the same requests are in time.
  options.stall_timeout_s = kSanitized ? 4 : 2;
  std::promise<void> given_up;
  RunRanks(
      GetParam(),
      [&](NamedLane& lane) {
        const std::vector<float> in(4, 1);
        const auto sum = [](const std::string& name, int64_t rows = 4) {
          return Request(NamedKind::kAllReduce, name, {rows});
        };
        const auto fail = [&](const std::vector<NamedRequest>& members, StatusCode code, const std::string& text) {
          for (auto& outcome : AskAll(lane, Group("g", members), in)) {
            const Status status = outcome.get().status;
            EXPECT_EQ(status.code(), code) << status.ToString();
            EXPECT_TRUE(Contains(status, text)) << status.ToString();
          }
        };
        const bool first = lane.rank() == 0;
        fail({sum("a"), sum("b", first ? 4 : 3), sum("c")}, StatusCode::kFailedPrecondition,
             "allreduce 'b': the ranks");
        // The number of members, and which ones.
        if (first) {
          fail({sum("a"), sum("b"), sum("c")}, StatusCode::kFailedPrecondition,
               "rank 0 has 'g' of 3; rank 1 has 'g' of 2");
        } else {
          fail({sum("a"), sum("b")}, StatusCode::kFailedPrecondition, "rank 0 has 'g' of 3; rank 1 has 'g' of 2");
        }
        fail({sum("a"), sum(first ? "b" : "c")}, StatusCode::kFailedPrecondition,
             "group 'g': the ranks differ in its tensors: rank 0 has 2 of 2, among them 'b'; rank 1 has 2 of 2, among "
             "them 'c'");
        NamedRequest bad = Request(NamedKind::kAllToAll, "b", {4});
        bad.splits = {first ? -1 : 2, 2};
        fail({sum("a"), bad}, StatusCode::kInvalidArgument, "rank 0: alltoall 'b': a split is -1");
        // After a member that no rank waits for comes one that rank 0 is late for.
        if (!first) {
          fail({sum("a"), sum("b")}, StatusCode::kDeadlineExceeded, "rank 0 did not request it");
          given_up.set_value();
        }
        // Rank 0's requests would be given up, too, if it made them before rank 1.
        if (first) given_up.get_future().wait();
        EXPECT_EQ(Await(lane, Barrier("over")), OkStatus());
        for (auto& outcome : AskAll(lane, Group("g", {sum("a"), sum("b")}), in)) {
          EXPECT_EQ(outcome.get().As<float>(), std::vector<float>(4, 2));
        }
      },
      options);
}

TEST_P(NamedLaneErrorsTest, WarnsOfRanksThatDoNotComeAndGivesUp) {
  Mutex mutex;
  std::vector<std::string> warnings;
  NamedLaneOptions options;
  const std::string late = "barrier 'x': rank 0 did not request it within ";
  options.stall_warning_s = 0.05;
  options.stall_timeout_s = 0.3;
  options.warn = [&](const std::string& text) {
    const MutexLock lock(mutex);
    warnings.push_back(text);
  };
  RunRanks(
      GetParam(),
      [&](NamedLane& lane) {
        if (lane.rank() == 1) {
          const Status status = Ask(lane, Request(NamedKind::kBarrier, "x", {}), kNothing).get().status;
          EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
          EXPECT_TRUE(status.message().starts_with(late)) << status.ToString();
        }
        // This is given up, too, until both have made the request.
        Status over = DeadlineExceeded("");
        while (over.code() == StatusCode::kDeadlineExceeded) over = Await(lane, Barrier("over"));
        EXPECT_EQ(over, OkStatus());
      },
      options);
  if (GetParam().RanksHere().front() != 0) return;
  EXPECT_TRUE(std::any_of(warnings.begin(), warnings.end(), [&](const std::string& text) {
    return text.starts_with(late) && text.ends_with(" s; other ranks wait");
  })) << ::testing::PrintToString(warnings);
}

INSTANTIATE_TEST_SUITE_P(Backends, NamedLaneErrorsTest, ::testing::ValuesIn(LanePairs()), JobShapeName);

}  // namespace
}  // namespace lockstep
