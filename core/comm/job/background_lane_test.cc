// Promise of this file (checkpoints.md): a save beside training connects although another process has the port of the
// rendezvous.

#include "core/comm/job/background_lane.h"

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/comm/job/context.h"
#include "core/comm/rendezvous/rendezvous_wire.h"
#include "core/testing/job.h"

namespace lockstep {
namespace {

constexpr double kLongS = 60;

// Runs `rank` on both ranks of a job, as threads.
void WithTwoRanks(const std::function<void(Context& context)>& rank) {
  const std::string address = testing::FreeLocalAddress();
  std::vector<std::thread> threads;
  for (int r : {0, 1}) {
    threads.emplace_back([&, r] {
      Result<std::unique_ptr<Context>> context = Context::Create(JobOptions({"shm", 2}, address, r));
      ASSERT_TRUE(context.ok()) << context.status().ToString();
      rank(**context);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(BackgroundLaneTest, WithoutWorkThereIsNothingToWaitFor) {
  Result<std::unique_ptr<Context>> context = Context::Create({});
  ASSERT_TRUE(context.ok());
  EXPECT_EQ((*context)->AwaitBackground(0), OkStatus());
}

TEST(BackgroundLaneTest, WorkExchangesWhileStepsDo) {
  WithTwoRanks([](Context& context) {
    std::promise<void> steps_are_over;
    float sum = 0;
    context.background().Post(
        [&](Communicator& c) {
          // It needs no turn among the collectives of the steps.
          steps_are_over.get_future().wait();
          float x = 1.0f + static_cast<float>(c.rank());
          return c.AllReduce("work", ReduceOp::kSum, DType::kFloat32, 1, &x, &sum);
        },
        [] { ADD_FAILURE() << "dropped"; });
    EXPECT_FALSE(context.AwaitBackground(0).has_value());
    for (int step = 0; step < 10; ++step) EXPECT_EQ(context.communicator().Barrier("step"), OkStatus());
    steps_are_over.set_value();
    EXPECT_EQ(context.AwaitBackground(kLongS), OkStatus());
    EXPECT_EQ(sum, 3);
  });
}

// Hours may pass between the start of a job and its first save beside training.
TEST(BackgroundLaneTest, ItConnectsWhenAnotherProcessHasTakenTheRendezvousPort) {
  UniqueFd taken;
  std::promise<void> is_taken;
  const std::shared_future<void> then = is_taken.get_future().share();
  WithTwoRanks([&](Context& context) {
    // After it no rank waits at the rendezvous.
    EXPECT_EQ(context.communicator().Barrier("step"), OkStatus());
    if (context.communicator().rank() == 0) {
      Result<UniqueFd> other = wire::Listen(context.options().rendezvous);
      EXPECT_EQ(other.status(), OkStatus());
      if (other.ok()) taken = *std::move(other);
      is_taken.set_value();
    }
    then.wait();
    context.background().Post([](Communicator& c) { return c.Barrier("work"); }, [] {});
    EXPECT_EQ(context.AwaitBackground(kLongS), OkStatus());
  });
}

TEST(BackgroundLaneTest, AnErrorIsReturnedOnceAndLaterWorkRuns) {
  WithTwoRanks([](Context& context) {
    const Status full = ResourceExhausted("the disk is full");
    for (int i : {0, 1, 2}) {
      context.background().Post(
          [&, i](Communicator& c) { return i == 1 && c.rank() == 1 ? c.Decline("work", full) : c.Barrier("work"); },
          [] {});
    }
    const std::optional<Status> ended = context.AwaitBackground(kLongS);
    ASSERT_TRUE(ended.has_value());
    EXPECT_EQ(ended->code(), StatusCode::kResourceExhausted);
    EXPECT_NE(ended->message().find("rank 1: the disk is full"), std::string::npos) << ended->ToString();
    EXPECT_EQ(context.AwaitBackground(0), OkStatus());
    EXPECT_EQ(context.communicator().Barrier("step"), OkStatus());
  });
}

TEST(BackgroundLaneTest, LeavingEndsWorkAndDropsWhatComesLater) {
  WithTwoRanks([](Context& context) {
    std::promise<void> runs, dropped;
    const bool leaves = context.communicator().rank() == 0;
    context.background().Post(
        [&](Communicator& c) {
          runs.set_value();
          return leaves ? c.Barrier("never comes") : OkStatus();
        },
        [] {});
    runs.get_future().wait();
    if (!leaves) return;
    context.Leave("its program ended");
    context.background().Post([](Communicator&) { return OkStatus(); }, [&] { dropped.set_value(); });
    dropped.get_future().wait();
    const std::optional<Status> ended = context.AwaitBackground(kLongS);
    ASSERT_TRUE(ended.has_value());
    EXPECT_FALSE(ended->ok());
  });
}

}  // namespace
}  // namespace lockstep
