// Promise of this file (many_hosts.md): collectives of 64 ranks on 16 hosts equal the oracle, and report faults.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/job/context.h"
#include "core/testing/job.h"
#include "core/testing/ranks.h"

// The duties of every backend after a failure: every waiting rank gets an error that names the culprit and the
// operation, and no rank hangs. Ranks really die.

namespace lockstep {
namespace {

bool Contains(const Status& status, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts) {
    if (status.message().find(part) == std::string::npos) return false;
  }
  return true;
}

std::string Unexpected(const Status& status) { return StrCat("got ", status.ToString()); }

// Checks that a collective of another kind returns the same error again, at once.
std::string ExpectBroken(Communicator& c, const Status& first) {
  const Status again = c.Barrier("after the end");
  return again == first ? "" : StrCat("first ", first.ToString(), ", then ", again.ToString());
}

// The seconds within which a death has to be reported. It is noticed within 50 ms; the rest is for a busy machine. It
// is far less than the timeouts that would end the wait as well, with other texts.
constexpr double kReportWithin_s = kSanitized ? 60 : 20;

// The time of a rank's death, for ranks that are forks: in memory that they share, on a clock that is the same for all
// processes of a machine.
class TimeOfDeath {
 public:
  using Clock = std::chrono::steady_clock;

  [[noreturn]] void DieNow() {
    ticks_->store(Clock::now().time_since_epoch().count());
    testing::DieNow();
  }

  // Returns "" if the death has just been reported in time; called by a survivor that got the error.
  std::string ExpectReportedInTime() const {
    const int64_t died = ticks_->load();
    if (died == 0) return "a death was reported before it happened";
    const double seconds =
        std::chrono::duration<double>(Clock::now().time_since_epoch() - Clock::duration(died)).count();
    return seconds <= kReportWithin_s ? "" : StrCat("the death was reported after ", seconds, " s");
  }

 private:
  testing::Shared<std::atomic<int64_t>> ticks_{0};
};

// All ways in which a collective can wait; a death is tried in each.
struct Operation {
  std::string name;
  std::function<Status(Communicator& c, std::vector<float>& memory)> run;
};

// All ways of a contribution (inline, slot, staged, in place), and the pipeline with and without results: each waits at
// other places. Each rank needs memory for the data of all. So many ranks try only small calls.
std::vector<Operation> AllOperations(int size) {
  const auto all_reduce = [](int64_t count) {
    return [count](Communicator& c, std::vector<float>& memory) {
      memory.resize(count);
      return c.AllReduce("x", ReduceOp::kSum, DType::kFloat32, count, memory.data(), memory.data());
    };
  };
  const auto in_place = [](Communicator& c, std::vector<float>&) {
    const auto buffer = c.AllocateShared(8 << 20);
    return c.AllReduce("x", ReduceOp::kSum, DType::kFloat32, 2 << 20, buffer->data(), buffer->data());
  };
  const auto broadcast = [](Communicator& c, std::vector<float>& memory) {
    memory.resize(2 << 20);
    return c.Broadcast("x", 0, 8 << 20, memory.data());
  };
  const auto exchange = [](Communicator& c, std::vector<float>& memory) {
    memory.resize(2 << 20);
    const std::vector<int64_t> sends(c.size(), (2 << 20) / c.size());
    std::vector<float> out(c.size() * sends[0]);
    return c.AllToAllV("x", {DType::kFloat32, 1}, sends, memory.data(),
                       [&](auto) -> Result<void*> { return static_cast<void*>(out.data()); });
  };
  // Rank r has r + 1 parts of the rows.
  const auto gather = [](int64_t part) {
    return [part](Communicator& c, std::vector<float>& memory) {
      memory.resize(part * c.size());
      std::vector<float> out;
      return c.AllGatherV("x", {DType::kFloat32, 1}, part * (c.rank() + 1), memory.data(),
                          [&](std::span<const int64_t> counts) -> Result<void*> {
                            out.resize(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
                            return static_cast<void*>(out.data());
                          });
    };
  };
  const auto reduce_scatter = [](int64_t count) {
    return [count](Communicator& c, std::vector<float>& memory) {
      memory.resize(count * c.size());
      std::vector<float> out(count);
      const std::vector<int64_t> counts(c.size(), count);
      return c.ReduceScatter("x", ReduceOp::kSum, DType::kFloat32, counts, memory.data(), out.data());
    };
  };
  const Operation barrier = {"barrier", [](Communicator& c, std::vector<float>&) { return c.Barrier("x"); }};
  if (size > 16) return {{"allreduce", all_reduce(1)}, barrier};
  return {{"allreduce", all_reduce(1)},
          {"allreduce", all_reduce(100)},
          {"allreduce", all_reduce(2 << 20)},
          {"allreduce", in_place},
          {"broadcast", broadcast},
          {"alltoall", exchange},
          {"allgather", gather(1)},
          {"allgather", gather(1 << 18)},
          {"reducescatter", reduce_scatter(1)},
          {"reducescatter", reduce_scatter(1 << 18)},
          barrier};
}

class FaultsTest : public ::testing::TestWithParam<JobShape> {
 protected:
  int size() const { return GetParam().size; }
  int last() const { return GetParam().size - 1; }
};

// The victim dies before its part of a call, so all others wait for it.
TEST_P(FaultsTest, AKilledRankIsNamedWhateverTheOthersDo) {
  for (const Operation& operation : AllOperations(size())) {
    SCOPED_TRACE(operation.name);
    TimeOfDeath death;
    const testing::Shared<std::atomic<int>> rounds_done(0);
    Job job(GetParam(), [&, victim = last()](Communicator& c) -> std::string {
      std::vector<float> memory;
      // A few rounds come first, so that the victim dies while the others are busy.
      for (int i = 0; i < 3; ++i) {
        if (Status s = operation.run(c, memory); !s.ok()) return Unexpected(s);
      }
      // A death may also end a round whose data is still on its way, so the victim waits until the others have finished
      // all rounds.
      ++*rounds_done;
      if (c.rank() == victim && !testing::Site::OfThisProcess()) testing::AwaitCount(*rounds_done, c.size());
      if (c.rank() == victim) death.DieNow();
      const Status status = operation.run(c, memory);
      if (std::string late = death.ExpectReportedInTime(); !late.empty()) return late;
      const std::string culprit = StrCat("rank ", victim);
      if (status.code() != StatusCode::kUnavailable || !Contains(status, {culprit, "died", operation.name, "'x'"})) {
        return Unexpected(status);
      }
      return ExpectBroken(c, status);
    });
    job.ExpectSurvivorsWell({last()});
  }
}

// 16 MiB, staged: 64 chunks; it may die between any two of them.
TEST_P(FaultsTest, ARankKilledInTheMiddleOfACollectiveIsNamed) {
  TimeOfDeath death;
  Job job(GetParam(), [&death, victim = last()](Communicator& c) -> std::string {
    std::vector<float> memory(4 << 20);
    // The victim's other thread kills it at some moment of the loop.
    std::thread killer;
    if (c.rank() == victim) {
      killer = std::thread([&death] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        death.DieNow();
      });
    }
    Status status;
    while (status.ok()) {
      status = c.AllReduce("loop", ReduceOp::kSum, DType::kFloat32, 4 << 20, memory.data(), memory.data());
    }
    if (std::string late = death.ExpectReportedInTime(); !late.empty()) return late;
    const bool good = status.code() == StatusCode::kUnavailable &&
                      Contains(status, {StrCat("rank ", victim), "died", "allreduce 'loop'"});
    return good ? "" : Unexpected(status);
  });
  job.ExpectSurvivorsWell({last()});
}

// To the kernel, a stopped process is alive: only a timeout reveals it.
TEST_P(FaultsTest, AFrozenRankIsNamedAfterTheStallTimeoutWhateverTheOthersDo) {
  const Adjust impatient = [](ContextOptions& options) { options.stall_timeout_s = kSanitized ? 4 : 2; };
  // All run at once, because they only wait.
  std::vector<std::unique_ptr<Job>> jobs;
  std::vector<std::unique_ptr<testing::Shared<std::atomic<int>>>> counts;
  for (const Operation& operation : AllOperations(size())) {
    std::atomic<int>* const ready = &**counts.emplace_back(std::make_unique<testing::Shared<std::atomic<int>>>(0));
    const Part part = [operation, ready, victim = last()](Communicator& c) -> std::string {
      std::vector<float> memory;
      if (c.rank() == victim) testing::FreezeNow();
      // No other rank is late, however long a busy machine takes to start all these processes.
      ++*ready;
      if (!testing::Site::OfThisProcess()) testing::AwaitCount(*ready, c.size() - 1);
      const Status status = operation.run(c, memory);
      const bool good =
          status.code() == StatusCode::kDeadlineExceeded &&
          Contains(status, {StrCat("nothing from rank ", victim, " for "), StrCat(" s in ", operation.name, " 'x'")});
      return good ? ExpectBroken(c, status) : Unexpected(status);
    };
    jobs.push_back(std::make_unique<Job>(GetParam(), part, impatient));
  }
  for (const std::unique_ptr<Job>& job : jobs) job->ExpectSurvivorsWell({last()});
}

// Long before the stall timeout, if a rank of its host waits for it.
class StopsTest : public FaultsTest {};

TEST_P(StopsTest, AStoppedRankIsNamedWhateverTheOthersDo) {
  const Adjust impatient = [](ContextOptions& options) { options.stopped_timeout_s = 0.5; };
  std::vector<std::unique_ptr<Job>> jobs;
  for (const Operation& operation : AllOperations(size())) {
    const Part part = [operation, victim = last()](Communicator& c) -> std::string {
      std::vector<float> memory;
      if (c.rank() == victim) testing::FreezeNow();
      const Status status = operation.run(c, memory);
      const bool good = status.code() == StatusCode::kUnavailable &&
                        Contains(status, {StrCat("rank ", victim, " (process "), ") has been stopped for 0.5 s",
                                          StrCat("waited for it in ", operation.name, " 'x'")});
      return good ? ExpectBroken(c, status) : Unexpected(status);
    };
    jobs.push_back(std::make_unique<Job>(GetParam(), part, impatient));
  }
  for (const std::unique_ptr<Job>& job : jobs) job->ExpectSurvivorsWell({last()});
}

// Each stop is shorter than the allowed time; together they are longer.
TEST_P(StopsTest, ARankThatGoesOnInTimeIsNotMissed) {
  const Adjust adjust = [](ContextOptions& options) { options.stopped_timeout_s = kSanitized ? 10 : 3; };
  Job job(
      GetParam(),
      [victim = last()](Communicator& c) -> std::string {
        for (int i = 0; i < 4; ++i) {
          if (c.rank() == victim) {
            // A child resumes it.
            const pid_t self = getpid();
            const pid_t child = fork();
            if (child == 0) {
              std::this_thread::sleep_for(std::chrono::seconds(1));
              kill(self, SIGCONT);
              _exit(0);
            }
            testing::FreezeNow();
            waitpid(child, nullptr, 0);
          }
          if (Status s = c.Barrier("x"); !s.ok()) return Unexpected(s);
        }
        return "";
      },
      adjust);
  job.ExpectSurvivorsWell();
}

INSTANTIATE_TEST_SUITE_P(
    Backends, StopsTest,
    ::testing::ValuesIn(Tested({JobShape{"shm", 2}, JobShape{"shm", 3}, JobShape{"auto", 4, "aabb"}})), JobShapeName);

TEST_P(FaultsTest, ARankThatLeavesEarlyIsSaidToHaveLeft) {
  Job job(GetParam(), [victim = last()](Communicator& c) -> std::string {
    if (Status s = c.Barrier("together"); !s.ok()) return Unexpected(s);
    if (c.rank() == victim) return "";
    const Status status = c.Barrier("alone");
    const bool good = status.code() == StatusCode::kUnavailable &&
                      Contains(status, {StrCat("rank ", victim, " left the job"), "barrier 'alone'"});
    return good ? ExpectBroken(c, status) : Unexpected(status);
  });
  job.ExpectSurvivorsWell();
}

TEST_P(FaultsTest, WhoWaitsForARankThatLeftHearsHow) {
  const std::string how = "it finished its program at step 30";
  Job job(GetParam(), [how, victim = last()](Communicator& c) -> std::string {
    if (Status s = c.Barrier("together"); !s.ok()) return Unexpected(s);
    if (c.rank() == victim) {
      c.Leave(how);
      return "";
    }
    const Status status = c.Barrier("alone");
    const bool good = status.code() == StatusCode::kUnavailable &&
                      Contains(status, {StrCat("rank ", victim, " left the job"), "barrier 'alone'", ": " + how});
    return good ? ExpectBroken(c, status) : Unexpected(status);
  });
  job.ExpectSurvivorsWell();
}

// A rank that leaves at once must not disturb the collective for those that are still reading its last step.
TEST_P(FaultsTest, RanksThatHaveDoneTheirPartMayLeaveInAnyOrder) {
  for (int first = 0; first < size(); ++first) {
    Job job(GetParam(), [first](Communicator& c) -> std::string {
      std::vector<float> memory(1 << 20);
      const Status status = c.AllReduce("last", ReduceOp::kSum, DType::kFloat32, 1 << 20, memory.data(), memory.data());
      if (c.rank() != first) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return status.ok() ? "" : Unexpected(status);
    });
    job.ExpectSurvivorsWell();
  }
}

// As threads, because Leave comes from another thread than the collective that it ends.
TEST_P(FaultsTest, LeavingEndsTheOwnCollectives) {
  ExpectAllWellAsThreads(GetParam(), [victim = last()](Communicator& c) -> std::string {
    std::thread leaver;
    if (c.rank() == victim) leaver = std::thread([&] { c.Leave(); });
    Status status;
    while (status.ok()) status = c.Barrier("until it ends");
    if (leaver.joinable()) leaver.join();
    const StatusCode wanted = c.rank() == victim ? StatusCode::kCancelled : StatusCode::kUnavailable;
    return status.code() == wanted && Contains(status, {StrCat("rank ", victim)}) ? "" : Unexpected(status);
  });
}

TEST_P(FaultsTest, AnAbortEndsTheWaitHereAndReachesThePeersWithItsReason) {
  std::atomic<int> ended = 0;
  ExpectAllWellAsThreads(GetParam(), [&ended, victim = last()](Communicator& c) -> std::string {
    // The aborting rank aborts from another thread while its collective waits for rank 0, which never comes.
    std::thread aborter;
    if (c.rank() == victim) {
      aborter = std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        c.Abort(Internal("the kernel was cancelled"));
        c.Abort(Internal("a second reason, which does not count"));
      });
    }
    if (c.rank() == 0) {
      while (ended < c.size() - 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return "";
    }
    const Status status = c.Barrier("never");
    ++ended;
    if (aborter.joinable()) aborter.join();
    const bool good =
        status.code() == StatusCode::kCancelled && Contains(status, {"INTERNAL: the kernel was cancelled"});
    if (!good) return Unexpected(status);
    if (c.rank() != victim && !Contains(status, {StrCat("rank ", victim, " aborted the job"), "barrier 'never'"})) {
      return Unexpected(status);
    }
    return ExpectBroken(c, status);
  });
}

TEST_P(FaultsTest, DifferentCallsAreDescribedToAllAndBreakNothing) {
  ExpectAllWell(GetParam(), [victim = last()](Communicator& c) -> std::string {
    std::array<float, 8> memory = {};
    const Allocate allocate = [&](auto) -> Result<void*> { return static_cast<void*>(memory.data()); };
    const bool odd = c.rank() == victim;
    const auto reduce = [&](const char* name, ReduceOp op, DType dtype, int64_t count) {
      return c.AllReduce(name, op, dtype, count, memory.data(), memory.data());
    };
    // Another name, reduction, type, count, root, width, and kind of call.
    const std::vector<std::function<Status()>> disagreements = {
        [&] { return reduce(odd ? "b" : "a", ReduceOp::kSum, DType::kFloat32, 1); },
        [&] { return reduce("a", odd ? ReduceOp::kMax : ReduceOp::kSum, DType::kFloat32, 1); },
        [&] { return reduce("a", ReduceOp::kSum, odd ? DType::kInt32 : DType::kFloat32, 1); },
        [&] { return reduce("a", ReduceOp::kSum, DType::kFloat32, odd ? 2 : 1); },
        [&] { return c.Broadcast("a", odd ? 1 : 0, 4, memory.data()); },
        [&] {
          return c.AllGatherV("a", {DType::kFloat32, odd ? 2 : 1}, 0, memory.data(), allocate);
        },
        [&] { return odd ? c.Barrier("a") : c.Broadcast("a", 0, 4, memory.data()); },
    };
    for (const auto& disagreement : disagreements) {
      const Status status = disagreement();
      if (status.code() != StatusCode::kFailedPrecondition ||
          !Contains(status, {"disagree", StrCat("rank ", victim, " called")})) {
        return Unexpected(status);
      }
    }
    const Status status = reduce(odd ? "b" : "a", ReduceOp::kSum, odd ? DType::kInt32 : DType::kFloat32, 1);
    if (!Contains(status, {"allreduce 'a' (sum of 1 x float32)", "allreduce 'b' (sum of 1 x int32)"})) {
      return Unexpected(status);
    }
    return c.Barrier("and all is well").message();
  });
}

// First one rank declines, then two at once: all ranks return the lower one's reason. The reductions in between prove
// that the ranks are still in step: x is multiplied by R each time.
TEST_P(FaultsTest, ADeclinedCollectiveFailsOnAllRanksAndBreaksNothing) {
  ExpectAllWell(GetParam(), [victim = last()](Communicator& c) -> std::string {
    float x = 1;
    for (const bool several : {false, true}) {
      const bool declines = c.rank() == victim || (several && c.rank() == 1);
      const Status why = InvalidArgument(StrCat("table 'user' has no row ", c.rank()));
      const Status status =
          declines ? c.Decline("lookup", why) : c.AllReduce("lookup", ReduceOp::kSum, DType::kFloat32, 1, &x, &x);
      const int named = several ? 1 : victim;
      if (status != InvalidArgument(StrCat("rank ", named, ": table 'user' has no row ", named)))
        return Unexpected(status);
      if (Status s = c.AllReduce("next", ReduceOp::kSum, DType::kFloat32, 1, &x, &x); !s.ok()) return Unexpected(s);
    }
    return x == c.size() * c.size() ? "" : StrCat("x is ", x);
  });
}

TEST_P(FaultsTest, NothingStaysInTheFolderOfSharedMemory) {
  const std::vector<std::string> before = testing::SharedMemoryFiles();
  Job job(GetParam(), [&, victim = last()](Communicator& c) -> std::string {
    const auto buffer = c.AllocateShared(1 << 20);
    // Even while the job runs, no file exists that a death could leave behind.
    if (testing::SharedMemoryFiles() != before) return "a file in /dev/shm";
    // No rank dies before all have checked.
    if (Status s = c.Barrier("looked"); !s.ok()) return Unexpected(s);
    if (c.rank() == victim) testing::DieNow();
    return c.Barrier("dead").ok() ? "no error" : "";
  });
  job.ExpectSurvivorsWell({last()});
  EXPECT_EQ(testing::SharedMemoryFiles(), before);
}

INSTANTIATE_TEST_SUITE_P(Backends, FaultsTest,
                         ::testing::ValuesIn(Tested({JobShape{"shm", 2}, JobShape{"shm", 3}, JobShape{"shm", 5},
                                                     JobShape{"gloo", 2}, JobShape{"gloo", 3},
                                                     JobShape{"auto", 3, "aab"}, JobShape{"auto", 4, "aabb"}})),
                         JobShapeName);
// For tests/hosts/conformance_test.py.
INSTANTIATE_TEST_SUITE_P(AtScale, FaultsTest, ::testing::ValuesIn(Tested(OnSitesOnly({OnHosts(16, 4)}))), JobShapeName);

// A death that 63 others wait for: 3 in their host's shared memory, 15 leaders on the rail, the rest for their leaders.
class FaultsAtScaleTest : public FaultsTest {};
// A program on devices has no shape of so many ranks.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FaultsAtScaleTest);
TEST_P(FaultsAtScaleTest, AKilledRankIsNamedByAllOthers) {
  TimeOfDeath death;
  Job job(GetParam(), [&](Communicator& c) -> std::string {
    if (Status s = c.Barrier("together"); !s.ok()) return Unexpected(s);
    constexpr int kVictim = 29;
    if (c.rank() == kVictim) death.DieNow();
    Status status;
    while (status.ok()) status = c.Barrier("x");
    if (std::string late = death.ExpectReportedInTime(); !late.empty()) return late;
    const bool good = status.code() == StatusCode::kUnavailable &&
                      Contains(status, {StrCat("rank ", kVictim), "died", "barrier 'x'"});
    return good ? ExpectBroken(c, status) : Unexpected(status);
  });
  job.ExpectSurvivorsWell({29});
}

INSTANTIATE_TEST_SUITE_P(AtScale, FaultsAtScaleTest, ::testing::ValuesIn(Tested({OnHosts(16, 4)})), JobShapeName);

}  // namespace
}  // namespace lockstep
