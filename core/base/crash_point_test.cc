#include "core/base/crash_point.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

namespace lockstep {
namespace {

using testing::ExitedWithCode;
using testing::KilledBySignal;

// Passes 'a', 'b', 'a', 'b' in a process of its own, which ends with code 0 where it is not killed.
[[noreturn]] void PassFour() {
  for (int i = 0; i < 2; ++i) {
    PassCrashPoint("a");
    PassCrashPoint("b");
  }
  _exit(0);
}

TEST(CrashPointDeathTest, KillsAtThePassThatWasAskedFor) {
  EXPECT_EXIT((CrashAt("b", 1), PassFour()), KilledBySignal(SIGKILL), "");
  EXPECT_EXIT((CrashAt("b", 2), PassFour()), KilledBySignal(SIGKILL), "");
}

TEST(CrashPointDeathTest, OthersArePassed) {
  EXPECT_EXIT(PassFour(), ExitedWithCode(0), "");
  EXPECT_EXIT((CrashAt("b", 3), PassFour()), ExitedWithCode(0), "");
  EXPECT_EXIT((CrashAt("c", 1), PassFour()), ExitedWithCode(0), "");
}

TEST(CrashPointDeathTest, ALaterCallTakesThePlaceOfAnEarlierOne) {
  EXPECT_EXIT((CrashAt("a", 1), CrashAt("c", 1), PassFour()), ExitedWithCode(0), "");
}

TEST(CrashPoint, NoPassIsRefused) {
  const Status status = CrashAt("a", 0);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("'a': pass 0"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace lockstep
