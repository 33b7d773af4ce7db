#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/testing/job.h"

// Promises of the shared-memory backend beyond the contract that all backends share (collectives_test.cc,
// faults_test.cc).

namespace lockstep {
namespace {

// Rank 1 lags behind in a call that rank 0 has ended: it is held up between the announcement and its reading of rank
// 0's slot. Rank 0 breaks off the next call, and tries one more, which would fill that same slot again.
TEST(ShmCommunicatorTest, ABrokenRankWritesNothingThatAPeerMayStillRead) {
  const std::vector<int64_t> good(100, 7), bad(100, 666), sends = {50, 50};
  std::vector<int64_t> out(200);
  const std::vector<std::function<Status(Communicator&)>> late_calls = {
      [&](Communicator& c) { return c.AllReduce("late", ReduceOp::kSum, DType::kInt64, 100, bad.data(), out.data()); },
      [&](Communicator& c) {
        return c.ReduceScatter("late", ReduceOp::kSum, DType::kInt64, sends, bad.data(), out.data());
      },
      [&](Communicator& c) { return c.Broadcast("late", 0, 800, const_cast<int64_t*>(bad.data())); },
      [&](Communicator& c) {
        return c.AllToAllV("late", {DType::kInt64}, sends, bad.data(),
                           [&](auto) -> Result<void*> { return static_cast<void*>(out.data()); });
      }};
  for (const auto& late_call : late_calls) {
    std::promise<void> lagging, tried;
    ExpectAllWellAsThreads({"shm", 2}, [&](Communicator& c) -> std::string {
      std::vector<int64_t> got(200);
      const Status gathered =
          c.AllGatherV("good", {DType::kInt64}, 100, good.data(), [&](std::span<const int64_t>) -> Result<void*> {
            if (c.rank() == 1) {
              lagging.set_value();
              tried.get_future().wait();
            }
            return static_cast<void*>(got.data());
          });
      if (!gathered.ok()) return gathered.ToString();
      if (c.rank() == 1) return std::count(got.begin(), got.end(), 7) == 200 ? "" : StrCat("got ", got[0]);
      lagging.get_future().wait();
      std::thread breaker([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        c.Abort(Cancelled("enough"));
      });
      const Status broken = c.Barrier("breaks");
      breaker.join();
      const Status late = late_call(c);
      tried.set_value();
      return broken.code() == StatusCode::kCancelled && late == broken ? ""
                                                                       : StrCat(broken.ToString(), late.ToString());
    });
  }
}

// Rank 1 is late, but in time. Rank 2 is later than the timeout, but comes less than the timeout after rank 1.
TEST(ShmCommunicatorTest, TheStallTimeoutCountsForAllPeersTogether) {
  std::promise<void> back;
  const Part part = [&](Communicator& c) -> std::string {
    if (Status s = c.Barrier("together"); !s.ok()) return s.ToString();
    if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    if (c.rank() == 2) back.get_future().wait_for(std::chrono::milliseconds(4000));
    const Status status = c.Barrier("late");
    if (c.rank() != 0) return "";  // they find the other two there, or get rank 0's error
    back.set_value();
    const bool rank_2_is_named = status.message().find("rank 2") != std::string::npos;
    return status.code() == StatusCode::kDeadlineExceeded && rank_2_is_named ? "" : status.ToString();
  };
  ExpectAllWellAsThreads({"shm", 3}, part, [](ContextOptions& options) { options.stall_timeout_s = 3; });
}

// Inline, in a slot, and larger.
TEST(ShmCommunicatorTest, ReducedBoolsAreZeroOrOneWhateverTheirNumber) {
  ExpectAllWell({"shm", 1}, [](Communicator& c) -> std::string {
    for (int64_t count : {10, 1000, 100000}) {
      std::vector<uint8_t> in(count, 2), out(count);
      in[0] = 0;
      const Status status = c.AllReduce("x", ReduceOp::kMax, DType::kBool, count, in.data(), out.data());
      if (!status.ok()) return status.ToString();
      if (out[0] != 0 || std::count(out.begin(), out.end(), 1) != count - 1) return StrCat(count, " bools");
    }
    return "";
  });
}

TEST(ShmCommunicatorTest, ANegativeWidthIsRefusedByAllExchanges) {
  ExpectAllWell({"shm", 1}, [](Communicator& c) -> std::string {
    char x = 0;
    const Allocate allocate = [&](auto) -> Result<void*> { return static_cast<void*>(&x); };
    for (const Status& status : {c.AllToAllV("x", {DType::kUInt8, -1}, std::vector<int64_t>{1}, &x, allocate),
                                 c.AllGatherV("x", {DType::kUInt8, -1}, 1, &x, allocate)}) {
      if (status.code() != StatusCode::kInvalidArgument) return status.ToString();
    }
    return "";
  });
}

}  // namespace
}  // namespace lockstep
