// Ranks that leave, die or fork.

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/named/named_lane.h"
#include "core/comm/named/test_lane.h"

namespace lockstep {
namespace {

class NamedLaneFaultsTest : public ::testing::TestWithParam<JobShape> {
 protected:
  // The ranks that leave or die: rank 0, which receives from all others, one on its host, and one on another host if
  // there is one.
  std::vector<int> Victims() const { return {0, 1, GetParam().size - 1}; }
};
// The same with two ranks.
class NamedLanePairFaultsTest : public ::testing::TestWithParam<JobShape> {};

// The others learn of an end from rank 0. So rank 0 stays until all survivors have; `heard` counts them. Ranks on other
// hosts cannot report it.
void WaitForSurvivors(int rank, int survivors, std::atomic<int>& heard) {
  ++heard;
  if (rank != 0) return;
  if (testing::Site::OfThisProcess()) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
  } else {
    testing::AwaitCount(heard, survivors);
  }
}

TEST_P(NamedLaneFaultsTest, EndsForAllWhenARankLeaves) {
  std::atomic<int> heard = 0;
  RunThreads(GetParam(), [&heard](const ContextOptions& options) {
    auto lane = CreateLane(options);
    ASSERT_TRUE(lane.ok()) << lane.status().ToString();
    EXPECT_EQ(Ask(**lane, Request(NamedKind::kBarrier, "start", {}), kNothing).get().status, OkStatus());
    const int leaver = options.size - 1;
    if (options.rank == leaver) return (*lane)->Leave("it finished its program");
    for (int i = 0; i < 2; ++i) {
      const Status status = Ask(**lane, Request(NamedKind::kBarrier, "x", {}), kNothing).get().status;
      EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
      EXPECT_TRUE(Contains(status, StrCat("rank ", leaver, " left the job"))) << status.ToString();
      EXPECT_TRUE(Contains(status, ": it finished its program")) << status.ToString();
    }
    WaitForSurvivors(options.rank, options.size - 1, heard);
  });
}

// Also if rank 0 leaves, in the middle of exchanges, with pending requests on all ranks.
TEST_P(NamedLaneFaultsTest, NamesTheRankThatLeavesAnExchange) {
  for (const int leaver : Victims()) {
    SCOPED_TRACE(::testing::Message() << "rank " << leaver << " leaves");
    std::atomic<int> heard = 0;
    RunThreads(GetParam(), [&](const ContextOptions& options) {
      auto lane = CreateLane(options);
      ASSERT_TRUE(lane.ok()) << lane.status().ToString();
      const int rank = options.rank;
      EXPECT_EQ(Await(**lane, Barrier("start")), OkStatus());
      const std::vector<float> in(1 << 18, 1);
      std::future<Outcome> never = Ask(**lane, Barrier(StrCat("only rank ", rank)), kNothing);
      Status status;
      std::thread leaves;
      if (rank == leaver) {
        leaves = std::thread([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          (*lane)->Leave();
        });
      }
      for (int i = 0; status.ok(); ++i) {
        status = Ask(**lane, Request(NamedKind::kAllReduce, StrCat("x", i), {1 << 18}), in).get().status;
      }
      const Status pending = never.get().status;
      for (const Status& end : {status, pending}) {
        EXPECT_EQ(end.code(), rank == leaver ? StatusCode::kCancelled : StatusCode::kUnavailable) << end.ToString();
        EXPECT_TRUE(rank == leaver || Contains(end, StrCat("rank ", leaver, " left the job"))) << end.ToString();
      }
      if (leaves.joinable()) leaves.join();
      if (rank != leaver) WaitForSurvivors(rank, options.size - 1, heard);
    });
  }
}

// Between hosts, messages say more about it: "rank 1 (process 123 on host b) died".
bool NamesTheDead(const Status& status, int victim) {
  return status.code() == StatusCode::kUnavailable && Contains(status, StrCat("rank ", victim, " ")) &&
         Contains(status, " died");
}

// Named within seconds, whether the others wait for the rank in the sequencer or in an exchange.
TEST_P(NamedLaneFaultsTest, NamesTheRankThatDied) {
  for (const int victim : Victims()) {
    SCOPED_TRACE(::testing::Message() << "rank " << victim << " dies");
    const testing::Shared<std::atomic<int>> heard(0);
    RunProcesses(GetParam(),
                 [&](std::unique_ptr<NamedLane> lane) -> std::string {
                   if (lane->rank() == victim) raise(SIGKILL);
                   const Status status = Await(*lane, Barrier("x"));
                   WaitForSurvivors(lane->rank(), lane->size() - 1, *heard);
                   return NamesTheDead(status, victim) ? "" : status.ToString();
                 },
                 {victim});
  }
}

// The error that breaks the lane, or OK if nothing breaks it within a minute; no rank makes requests during this time.
Status AwaitBreak(const NamedLane& lane, std::atomic<int>& heard) {
  for (int i = 0; i < 600 && lane.broken().ok(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const Status broken = lane.broken();
  WaitForSurvivors(lane.rank(), lane.size() - 1, heard);
  return broken;
}

// A child of the dead rank inherited its sockets and lives on; it hides nothing.
TEST_P(NamedLaneFaultsTest, SeesADeathWhileNobodyAsksForAnything) {
  for (const int victim : Victims()) {
    SCOPED_TRACE(::testing::Message() << "rank " << victim << " dies");
    const testing::Shared<std::atomic<int>> heard(0);
    RunProcesses(GetParam(),
                 [&](std::unique_ptr<NamedLane> lane) -> std::string {
                   if (lane->rank() == victim) {
                     if (fork() == 0) {
                       alarm(20);  // survivors on other hosts cannot tell it anything
                       testing::AwaitCount(*heard, lane->size() - 1);
                       _exit(0);
                     }
                     raise(SIGKILL);
                   }
                   const Status broken = AwaitBreak(*lane, *heard);
                   return NamesTheDead(broken, victim) ? "" : broken.ToString();
                 },
                 {victim});
  }
}

// No connection ends here either: the rank is cut off from the network, or does not run.
TEST_P(NamedLaneFaultsTest, SeesARankFallSilentWhileNobodyAsksForAnything) {
  if (GetParam().hosts.empty()) GTEST_SKIP() << "on one host a rank that stands still is awaited";
  for (const int victim : Victims()) {
    SCOPED_TRACE(::testing::Message() << "rank " << victim << " falls silent");
    const testing::Shared<std::atomic<int>> heard(0);
    RunProcesses(
        GetParam(),
        [&](std::unique_ptr<NamedLane> lane) -> std::string {
          if (lane->rank() == victim) testing::FreezeNow();
          const Status broken = AwaitBreak(*lane, *heard);
          const bool named = Contains(broken, StrCat("rank ", victim, " ")) && Contains(broken, " has been silent for");
          return broken.code() == StatusCode::kUnavailable && named ? "" : broken.ToString();
        },
        {victim}, [](ContextOptions& options) { options.silence_timeout_s = kSanitized ? 5 : 2.5; });
  }
}

// Another rank waits for it, perhaps only in the sequencer, whose requests may wait forever.
TEST_P(NamedLaneFaultsTest, NamesTheRankThatIsStopped) {
  for (const int victim : {0, GetParam().size - 1}) {
    SCOPED_TRACE(::testing::Message() << "rank " << victim << " is stopped");
    const testing::Shared<std::atomic<int>> heard(0);
    RunProcesses(
        GetParam(),
        [&](std::unique_ptr<NamedLane> lane) -> std::string {
          if (lane->rank() == victim) testing::FreezeNow();
          const Status status = Await(*lane, Barrier("x"));
          WaitForSurvivors(lane->rank(), lane->size() - 1, *heard);
          const bool named = Contains(status, StrCat("rank ", victim, " (process ")) &&
                             (Contains(status, ") has been stopped for 0.5 s") || !GetParam().hosts.empty());
          return status.code() == StatusCode::kUnavailable && named ? "" : status.ToString();
        },
        {victim}, [](ContextOptions& options) { options.stopped_timeout_s = 0.5; });
  }
}

// A process that ends while it waits: it ends at once, and the others learn which one it was.
TEST_P(NamedLanePairFaultsTest, EndsWithRequestsPending) {
  for (const int leaver : {0, 1}) {
    RunProcesses(GetParam(), [&](std::unique_ptr<NamedLane> lane) -> std::string {
      if (lane->rank() != leaver) {
        const Status status = Await(*lane, Barrier("x"));
        const bool named = Contains(status, StrCat("rank ", leaver, " "));
        return status.code() == StatusCode::kUnavailable && named ? "" : status.ToString();
      }
      NamedWork work;
      work.request = Barrier("never");
      work.done = [](const Status&, const NamedWork::Outcome&) {};
      lane->Submit(std::move(work));
      // Either with a normal end, or while the lane's thread continues to run.
      if (leaver == 0) {
        (void)lane.release();
        exit(0);
      }
      return "";
    });
  }
}

// A fork cannot make requests, and changes nothing for its parent when it ends.
TEST_P(NamedLanePairFaultsTest, HasForksThatHaveNoPartInIt) {
  RunProcesses(GetParam(), [](std::unique_ptr<NamedLane> lane) -> std::string {
    const std::string path = StrCat(::testing::TempDir(), "timeline_of_forks.json");
    if (!lane->StartTimeline(path, false).ok()) return "no timeline";
    const std::vector<float> in = {1};
    const auto sum = [&](int i) {
      return Ask(*lane, Request(NamedKind::kAllReduce, StrCat("x", i), {1}), in).get().As<float>();
    };
    for (int i = 0; i < 20; ++i) {
      std::future<Outcome> pending = Ask(*lane, Request(NamedKind::kAllReduce, StrCat("p", i), {1}), in);
      const pid_t child = fork();
      if (child == 0) {
        alarm(60);
        const Status status = Await(*lane, Barrier("x"));
        lane->Cancel(0, "not mine");
        lane->Leave();
        const bool right = status.code() == StatusCode::kFailedPrecondition &&
                           Contains(status, "is a fork of the one") && lane->AllocateShared(100) == nullptr &&
                           lane->NextNumber("x") == 0 && lane->pending() == 0;
        (void)lane.release();
        // A thread's stack that does not exist in the fork may hold the only reference; sanitizers report this as a
        // leak.
        if (kSanitized) _exit(right ? 0 : 1);
        exit(right ? 0 : 1);
      }
      int status = -1;
      if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        return StrCat("child ended with ", status);
      }
      if (pending.get().As<float>() != std::vector<float>{2} || sum(i) != std::vector<float>{2}) return "wrong sum";
    }
    const Status end = Await(*lane, Barrier("end"));
    return end.ok() && lane->StopTimeline().ok() ? "" : end.ToString();
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, NamedLaneFaultsTest,
                         ::testing::ValuesIn(Tested({{"shm", 3}, {"auto", 3, "aab"}, {"auto", 4, "aabb"}})),
                         JobShapeName);
INSTANTIATE_TEST_SUITE_P(Backends, NamedLanePairFaultsTest, ::testing::ValuesIn(LanePairs()), JobShapeName);

}  // namespace
}  // namespace lockstep
