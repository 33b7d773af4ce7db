#include "core/base/fork_guard.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep {
namespace {

TEST(ForkGuard, TellsAForkFromTheProcessItself) {
  const ForkGuard guard;
  EXPECT_FALSE(guard.InFork());
  const pid_t child = fork();
  if (child == 0) _exit(guard.InFork() && !ForkGuard().InFork() ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_FALSE(guard.InFork());
}

}  // namespace
}  // namespace lockstep
