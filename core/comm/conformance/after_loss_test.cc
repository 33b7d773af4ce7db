#include "core/comm/liveness/after_loss.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/base/unique_fd.h"
#include "core/comm/job/context.h"
#include "core/comm/named/named_lane.h"
#include "core/testing/job.h"
#include "core/testing/ranks.h"

// The fate of a rank that computes outside of collectives when another one is lost. The last rank is the lost one.

namespace lockstep {
namespace {

// The time after a loss in which a program has to reach a collective that reports it: not too short for a busy machine.
constexpr double kEnd_s = 1;
// The time that a rank computes without a collective: far longer than the watch needs to notice a loss.
constexpr auto kAlone = std::chrono::milliseconds(kSanitized ? 6000 : 3000);

// The ends of a job's ranks, and their output on stderr.
struct Ends {
  std::vector<testing::Outcome> outcomes;
  std::string said;
};

using RankPart = std::function<std::string(const ContextOptions& options)>;

Ends RunRanks(const JobShape& shape, const RankPart& part) {
  // All ranks append to it at once.
  const UniqueFd stderr_file(memfd_create("stderr of the ranks", MFD_CLOEXEC));
  fcntl(stderr_file.get(), F_SETFL, O_APPEND);
  const std::string address = testing::FreeLocalAddress();
  testing::Ranks ranks(shape.size, [&](int rank, const testing::Ranks::Report& report) {
    dup2(stderr_file.get(), STDERR_FILENO);
    ContextOptions options = JobOptions(shape, address, rank);
    options.end_after_loss_s = kEnd_s;
    const std::string error = part(options);
    report(error);
    return error.empty() ? 0 : 2;
  });
  Ends ends = {ranks.Wait(kJobDeadline_s), std::string(1 << 16, '\0')};
  const ssize_t bytes = pread(stderr_file.get(), ends.said.data(), ends.said.size(), 0);
  ends.said.resize(std::max<ssize_t>(bytes, 0));
  return ends;
}

class AfterLossTest : public ::testing::TestWithParam<JobShape> {
 protected:
  int last() const { return GetParam().size - 1; }
  Ends Run(const Part& part, std::optional<double> seconds = kEnd_s) {
    return RunRanks(GetParam(), [&](ContextOptions options) {
      options.end_after_loss_s = seconds;
      return PlayPart(options, [&](Communicator& c) -> std::string {
        const Status status = c.Barrier("together");
        return status.ok() ? part(c) : status.ToString();
      });
    });
  }
  void ExpectSurvivorsWell(const Ends& ends) {
    for (int rank = 0; rank < last(); ++rank) {
      EXPECT_EQ(ends.outcomes[rank].exit_code, 0) << ends.outcomes[rank].report << ends.said;
    }
    EXPECT_EQ(ends.said, "");
  }
};

TEST_P(AfterLossTest, ARankThatIsInNoCollectiveEndsAndSaysWhoWasLost) {
  const Ends ends = Run([victim = last()](Communicator& c) -> std::string {
    if (c.rank() == victim) testing::DieNow();
    std::this_thread::sleep_for(std::chrono::seconds(60));
    return "goes on";
  });
  for (int rank = 0; rank < last(); ++rank) {
    EXPECT_EQ(ends.outcomes[rank].exit_code, 1) << ends.outcomes[rank].report;
    EXPECT_NE(ends.said.find(StrCat("lockstep: rank ", rank, " (process ")), std::string::npos) << ends.said;
  }
  EXPECT_NE(ends.said.find(StrCat(" exits outside of a collective, ", kEnd_s, " s after the loss of a peer: ")),
            std::string::npos);
  EXPECT_NE(ends.said.find(StrCat("rank ", last(), " (process ")), std::string::npos) << ends.said;
  EXPECT_NE(ends.said.find(" died: "), std::string::npos) << ends.said;
}

TEST_P(AfterLossTest, AProgramThatWasToldGoesOn) {
  const testing::Shared<std::atomic<int>> asking(0);
  ExpectSurvivorsWell(Run([&asking, victim = last()](Communicator& c) -> std::string {
    if (c.rank() == victim) {
      testing::AwaitCount(*asking, c.size() - 1);
      testing::DieNow();
    }
    ++*asking;
    if (c.Barrier("told").ok()) return "no error";
    std::this_thread::sleep_for(kAlone);
    return "";
  }));
}

TEST_P(AfterLossTest, AProgramThatHasLeftGoesOn) {
  const testing::Shared<std::atomic<int>> left(0);
  ExpectSurvivorsWell(Run([&left, victim = last()](Communicator& c) -> std::string {
    if (c.rank() == victim) {
      testing::AwaitCount(*left, c.size() - 1);
      testing::DieNow();
    }
    c.Leave();
    ++*left;
    std::this_thread::sleep_for(kAlone);
    return "";
  }));
}

// In any order: all except rank 0 leave in the order of their ranks, and then rank 0; or rank 0 leaves first.
TEST_P(AfterLossTest, APeerThatLeavesIsNoLoss) {
  for (const bool zero_first : {false, true}) {
    ExpectSurvivorsWell(Run([=, victim = last()](Communicator& c) -> std::string {
      if (c.rank() == (zero_first ? 0 : victim)) return "";
      std::this_thread::sleep_for(kAlone);
      return "";
    }));
  }
}

TEST_P(AfterLossTest, AnAbortIsNoLoss) {
  ExpectSurvivorsWell(Run([victim = last()](Communicator& c) -> std::string {
    if (c.rank() == victim) c.Abort(Cancelled("enough"));
    std::this_thread::sleep_for(kAlone);
    return "";
  }));
}

TEST_P(AfterLossTest, WithoutATimeNoProcessIsEnded) {
  ExpectSurvivorsWell(Run(
      [victim = last()](Communicator& c) -> std::string {
        if (c.rank() == victim) testing::DieNow();
        std::this_thread::sleep_for(kAlone);
        return "";
      },
      std::nullopt));
}

INSTANTIATE_TEST_SUITE_P(Backends, AfterLossTest, ::testing::Values(JobShape{"gloo", 3}, JobShape{"auto", 4, "aabb"}),
                         JobShapeName);

// The process's output is not read, as with a launcher that is stopped, or a pager.
TEST(AfterLossAloneTest, AFullPipeBehindStderrHoldsUpNobody) {
  testing::Ranks ranks(1, [](int, const testing::Ranks::Report& report) {
    int ends[2];
    if (pipe2(ends, O_NONBLOCK) != 0) report("no pipe");
    const std::string page(4096, 'x');
    while (write(ends[1], page.data(), page.size()) > 0) continue;
    fcntl(ends[1], F_SETFL, 0);
    dup2(ends[1], STDERR_FILENO);
    AfterLoss after_loss(0.01, "rank 0");
    after_loss.Begin();
    after_loss.Lost(Unavailable("rank 1 died"));
    for (const Deadline deadline = Deadline::After(30); !deadline.Passed();) after_loss.Tick();
    return 2;
  });
  EXPECT_EQ(ranks.Wait(60)[0].exit_code, 1);
}

// The lane itself notices the death, and reports it to each later request.
TEST(AfterLossOfLanesTest, ANamedLaneTellsTheProgramByARequestAlone) {
  for (const bool asks : {false, true}) {
    const Ends ends = RunRanks({"gloo", 2}, [asks](const ContextOptions& options) -> std::string {
      const auto lane = NamedLane::Create(options, {});
      if (!lane.ok()) return lane.status().ToString();
      if (options.rank == 1) testing::DieNow();
      for (const Deadline deadline = Deadline::After(30); (*lane)->broken().ok() && !deadline.Passed();) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      std::string error = asks ? "not told" : "";
      NamedWork work;
      work.request.kind = NamedKind::kBarrier;
      work.request.name = "x";
      work.done = [&](const Status& status, const auto&) { error = status.ok() ? "no error" : ""; };
      if (asks) (*lane)->Submit(std::move(work));
      std::this_thread::sleep_for(kAlone);
      return error;
    });
    EXPECT_EQ(ends.outcomes[0].exit_code, asks ? 0 : 1) << ends.outcomes[0].report << ends.said;
  }
}

}  // namespace
}  // namespace lockstep
