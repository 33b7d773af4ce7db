#include "core/testing/ranks.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace lockstep::testing {
namespace {

TEST(RanksTest, GivesExitCodesAndReports) {
  Ranks ranks(3, [](int rank, const Ranks::Report& report) {
    report("I am " + std::to_string(rank));
    return rank * 10;
  });
  const auto outcomes = ranks.Wait(30);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(outcomes[rank].ended);
    EXPECT_EQ(outcomes[rank].exit_code, rank * 10);
    EXPECT_EQ(outcomes[rank].report, "I am " + std::to_string(rank));
  }
}

// Rank 2 never ends by itself: as a bystander it must not make the test wait for the deadline.
TEST(RanksTest, TellsTheKilledFromTheFrozen) {
  Ranks ranks(3, [](int rank, const Ranks::Report&) {
    if (rank == 1) DieNow();
    if (rank == 2) FreezeNow();
    return 0;
  });
  const auto outcomes = ranks.Wait(30, /*bystanders=*/{2});
  EXPECT_EQ(outcomes[0].exit_code, 0);
  EXPECT_TRUE(outcomes[1].ended);
  EXPECT_EQ(outcomes[1].signal, SIGKILL);
  EXPECT_FALSE(outcomes[2].ended);
}

TEST(RanksTest, KillsWhatIsThereAtTheDeadline) {
  Ranks ranks(1, [](int, const Ranks::Report&) {
    FreezeNow();
    return 0;
  });
  const pid_t pid = ranks.pid(0);
  EXPECT_FALSE(ranks.Wait(0.05)[0].ended);
  // Signal 0 asks whether there is such a process; a killed process that was not reaped would still be found.
  EXPECT_NE(kill(pid, 0), 0) << "the process is still there";
}

}  // namespace
}  // namespace lockstep::testing
