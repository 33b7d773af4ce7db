#include "core/capi/capi.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>

namespace lockstep {
namespace {

// A job of one rank: it has no rendezvous and needs neither address nor secret.
LockstepContextOptions OptionsOf(int rank, int size) {
  return {.rank = rank,
          .size = size,
          .rendezvous = "127.0.0.1:1",
          .secret = "s",
          .backend = "auto",
          .interface = nullptr,
          .host = nullptr,
          .listen = nullptr,
          .timeline = nullptr,
          .rendezvous_timeout_s = 10,
          .stall_timeout_s = 10,
          .stopped_timeout_s = LOCKSTEP_NEVER_S,
          .silence_timeout_s = 10,
          .end_after_loss_s = LOCKSTEP_NEVER_S,
          .shared_bytes_per_rank = 1 << 20,
          .listener = LOCKSTEP_NO_LISTENER,
          .device_backend = "",
          .device_channels = 1,
          .device_native_sums = 0};
}
int Init(int rank, int size) {
  const LockstepContextOptions options = OptionsOf(rank, size);
  return lockstep_init(&options);
}
int InitAlone() { return Init(0, 1); }

// The tests of this file share the process's one context; each test ends without one.
TEST(CapiTest, WithoutAContextTheErrorSaysHowToMakeOne) {
  EXPECT_EQ(lockstep_is_initialized(), 0);
  EXPECT_EQ(lockstep_rank(), -1);
  EXPECT_EQ(lockstep_size(), -1);
  EXPECT_EQ(lockstep_abort("no reason"), static_cast<int>(StatusCode::kFailedPrecondition));
  EXPECT_NE(std::string(lockstep_last_error()).find("init"), std::string::npos);
  EXPECT_EQ(lockstep_shutdown(), 0);
  EXPECT_STREQ(lockstep_last_error(), "");
}

// The process ends with an exit code or by a signal, at any time.
TEST(CapiTest, AProcessEndsWithinTheTimeThatItGivesItself) {
  if (LOCKSTEP_SANITIZED) GTEST_SKIP() << "the thread sanitizer has a thread of its own, and allows none in forks then";
  for (const int code : {3, -SIGINT}) {
    const pid_t child = fork();
    if (child == 0) {
      if (lockstep_end_within(0.1, code) != 0) _exit(99);
      while (true) pause();
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(code < 0 ? WIFSIGNALED(status) : WIFEXITED(status), true);
    EXPECT_EQ(code < 0 ? -WTERMSIG(status) : WEXITSTATUS(status), code);
  }
}

TEST(CapiTest, InitMakesTheOneContextUntilShutdown) {
  ASSERT_EQ(InitAlone(), 0) << lockstep_last_error();
  EXPECT_EQ(lockstep_is_initialized(), 1);
  EXPECT_EQ(lockstep_rank(), 0);
  EXPECT_EQ(lockstep_size(), 1);
  EXPECT_EQ(InitAlone(), static_cast<int>(StatusCode::kFailedPrecondition));
  // A kernel that holds the context at shutdown can still call it, and gets an error.
  const std::shared_ptr<Context> held = *DefaultContext();
  EXPECT_EQ(lockstep_shutdown(), 0);
  EXPECT_EQ(lockstep_is_initialized(), 0);
  EXPECT_EQ(held->communicator().Barrier("late").code(), StatusCode::kCancelled);
  ASSERT_EQ(InitAlone(), 0) << lockstep_last_error();
  EXPECT_EQ(lockstep_abort("enough"), 0);
  EXPECT_EQ((*DefaultContext())->communicator().Barrier("late").message(), "enough");
  EXPECT_EQ(lockstep_shutdown(), 0);
}

// A thread that waits for the work may come after the end of its job, or even in the next one.
TEST(CapiTest, BackgroundWorkIsOfOneContext) {
  ASSERT_EQ(InitAlone(), 0) << lockstep_last_error();
  const long long number = lockstep_context_number();
  EXPECT_EQ(lockstep_barrier_in_background(number, ""), 0);
  EXPECT_EQ(lockstep_await_background(number, 10), 0);
  ASSERT_EQ(lockstep_shutdown(), 0);
  const auto expect_that_it_has_left = [number] {
    EXPECT_EQ(lockstep_barrier_in_background(number, ""), static_cast<int>(StatusCode::kCancelled));
    EXPECT_EQ(lockstep_await_background(number, 0), static_cast<int>(StatusCode::kCancelled));
    EXPECT_STREQ(lockstep_last_error(), "this rank has left the job");
  };
  expect_that_it_has_left();
  ASSERT_EQ(InitAlone(), 0) << lockstep_last_error();
  expect_that_it_has_left();
  ASSERT_EQ(lockstep_shutdown(), 0);
}

// ctypes calls from any of Python's threads: a thread must not see another thread's error.
TEST(CapiTest, BadOptionsComeBackAsCodeAndTextOfTheCallingThread) {
  EXPECT_EQ(Init(3, 2), static_cast<int>(StatusCode::kInvalidArgument));
  EXPECT_NE(std::string(lockstep_last_error()).find("rank is 3"), std::string::npos) << lockstep_last_error();
  std::thread([] { EXPECT_STREQ(lockstep_last_error(), ""); }).join();
  EXPECT_NE(std::string(lockstep_last_error()), "");
}

}  // namespace
}  // namespace lockstep
