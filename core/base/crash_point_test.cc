#include "core/base/crash_point.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace lockstep {
namespace {

using testing::ExitedWithCode;
using testing::KilledBySignal;

// Passes 'a', 'b', 'a', 'b' in a process of its own, which asks for a crash first. Without a crash it ends with code 0.
[[noreturn]] void PassFour(const char* asked = "", int passes = 1) {
  if (!CrashAt(asked, passes).ok()) _exit(1);
  for (int i = 0; i < 2; ++i) {
    PassCrashPoint("a");
    PassCrashPoint("b");
  }
  _exit(0);
}

TEST(CrashPointDeathTest, KillsAtThePassThatWasAskedFor) {
  EXPECT_EXIT(PassFour("b", 1), KilledBySignal(SIGKILL), "");
  EXPECT_EXIT(PassFour("b", 2), KilledBySignal(SIGKILL), "");
}

TEST(CrashPointDeathTest, OthersArePassed) {
  EXPECT_EXIT(PassFour(), ExitedWithCode(0), "");
  EXPECT_EXIT(PassFour("b", 3), ExitedWithCode(0), "");
  EXPECT_EXIT(PassFour("c", 1), ExitedWithCode(0), "");
}

TEST(CrashPointDeathTest, ALaterCallTakesThePlaceOfAnEarlierOne) {
  ASSERT_TRUE(CrashAt("a", 1).ok());
  EXPECT_EXIT(PassFour("c", 1), ExitedWithCode(0), "");
}

TEST(CrashPoint, NoPassIsRefused) {
  const Status status = CrashAt("a", 0);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("'a': pass 0"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace lockstep
