#include "core/comm/job/context.h"

#include <gtest/gtest.h>

#include <future>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/testing/job.h"

namespace lockstep {
namespace {

TEST(ContextTest, DefaultsAreAJobOfOneThatMeetsNobody) {
  Result<std::unique_ptr<Context>> context = Context::Create({});
  ASSERT_TRUE(context.ok()) << context.status().ToString();
  float x = 3;
  EXPECT_TRUE((*context)->communicator().AllReduce("x", ReduceOp::kMean, DType::kFloat32, 1, &x, &x).ok());
  EXPECT_EQ(x, 3);
  EXPECT_EQ((*context)->communicator().backend(), "shm");
  std::promise<void> ran;
  (*context)->lane().Post([&] { ran.set_value(); });
  ran.get_future().wait();
}

// As when a job is shut down and a kernel releases the engine on the lane, with more work posted after it.
TEST(ContextTest, WorkBehindTheLastOwnerStillHasItsCommunicator) {
  Result<std::unique_ptr<Context>> created = Context::Create({});
  ASSERT_TRUE(created.ok()) << created.status().ToString();
  std::shared_ptr<Context> context = *std::move(created);
  Lane& lane = context->lane();
  Communicator& communicator = context->communicator();
  RunAgreement& agreement = context->run_agreement();
  std::promise<void> posted;
  std::promise<Status> done;
  lane.Post([&posted, last = std::weak_ptr<Context>(context), owner = context]() mutable {
    posted.get_future().wait();
    owner.reset();
    EXPECT_TRUE(last.expired());
  });
  lane.Post([&] {
    const std::vector<std::string> operations = {"a"};
    done.set_value(agreement.Reach(communicator, operations));
  });
  context.reset();
  posted.set_value();
  EXPECT_EQ(done.get_future().get(), OkStatus());
}

// Each line makes one field of valid options invalid.
TEST(ContextTest, ValidateNamesTheFieldAndWhatItMayBe) {
  ContextOptions good;
  good.size = 2;
  good.rendezvous = "127.0.0.1:1";
  good.secret = "s";
  ASSERT_TRUE(good.Validate().ok());
  const auto expect = [&](const Adjust& spoil, const std::string& field) {
    ContextOptions options = good;
    spoil(options);
    const Status status = options.Validate();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << field;
    EXPECT_NE(status.message().find("option " + field + " is"), std::string::npos) << status.ToString();
    EXPECT_FALSE(Context::Create(options).ok());
  };
  expect([](ContextOptions& o) { o.size = 0; }, "size");
  expect([](ContextOptions& o) { o.size = 513; }, "size");
  expect([](ContextOptions& o) { o.size = 17, o.backend = "shm"; }, "size");
  expect([](ContextOptions& o) { o.rank = 2; }, "rank");
  expect([](ContextOptions& o) { o.rank = -1; }, "rank");
  expect([](ContextOptions& o) { o.rendezvous = ""; }, "rendezvous");
  expect([](ContextOptions& o) { o.secret = ""; }, "secret");
  expect([](ContextOptions& o) { o.backend = "pigeon"; }, "backend");
  expect([](ContextOptions& o) { o.rendezvous_timeout_s = 0; }, "rendezvous_timeout_s");
  expect([](ContextOptions& o) { o.stall_timeout_s = std::numeric_limits<double>::quiet_NaN(); }, "stall_timeout_s");
  expect([](ContextOptions& o) { o.shared_bytes_per_rank = -1; }, "shared_bytes_per_rank");
}

TEST(ContextTest, RanksThatAreConfiguredDifferentlyAreShownBoth) {
  const JobShape shape = {"shm", 2};
  const std::string address = testing::FreeLocalAddress();
  std::vector<Status> errors(2);
  std::vector<std::thread> threads;
  for (int rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      ContextOptions options = JobOptions(shape, address, rank);
      options.shared_bytes_per_rank = (rank + 1) << 20;
      errors[rank] = Context::Create(options).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& error : errors) {
    EXPECT_EQ(error.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(error.message().find("1048576 shared bytes"), std::string::npos) << error.ToString();
    EXPECT_NE(error.message().find("2097152 shared bytes"), std::string::npos) << error.ToString();
  }
}

// Promise (gpu.md): ranks on CPUs and ranks on GPUs in one job are refused by name.
TEST(ContextTest, RanksOnCpusAndOnGpusAreRefusedByName) {
  const std::string address = testing::FreeLocalAddress();
  std::vector<Status> errors(2);
  std::vector<std::thread> threads;
  for (int rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      ContextOptions options = JobOptions({"shm", 2}, address, rank);
      if (rank == 1) options.device = "nccl";
      errors[rank] = Context::Create(options).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& error : errors) {
    EXPECT_EQ(error.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(error.message().find("rank 0 (process "), std::string::npos) << error.ToString();
    EXPECT_NE(error.message().find(") trains on its CPU, and rank 1 (process "), std::string::npos);
    EXPECT_NE(error.message().find(") on its GPU (nccl); all ranks"), std::string::npos) << error.ToString();
  }
}

// The buffer's memory belongs to the segment, which the buffer keeps alive.
TEST(ContextTest, SharedBuffersOutliveTheContext) {
  Result<std::unique_ptr<Context>> context = Context::Create({});
  ASSERT_TRUE(context.ok());
  const auto buffer = (*context)->communicator().AllocateShared(1000);
  context = Internal("gone");
  EXPECT_EQ(buffer->bytes(), 1000);
  std::fill_n(static_cast<char*>(buffer->data()), 1000, 'x');
}

TEST(ContextTest, WithoutSharedBytesEverythingIsPrivate) {
  ContextOptions options;
  options.shared_bytes_per_rank = 0;
  Result<std::unique_ptr<Context>> context = Context::Create(options);
  ASSERT_TRUE(context.ok()) << context.status().ToString();
  EXPECT_EQ((*context)->communicator().AllocateShared(1), nullptr);
}

// A worker that forks (a data loader) must not leave the job for its parent when the fork ends. Threads left over would
// make later forks dangerous, so this test comes after them in a process of its own.
TEST(ContextTest, AForkOfARankHasNoSayInTheJob) {
  ExpectAllWell({"shm", 2}, [](Communicator& c) -> std::string {
    if (c.rank() == 1) {
      testing::Ranks child(1, [&](int, const testing::Ranks::Report&) {
        c.Leave();
        return 0;
      });
      if (child.Wait(30)[0].exit_code != 0) return "the child failed";
    }
    return c.Barrier("still together").message();
  });
}

}  // namespace
}  // namespace lockstep
