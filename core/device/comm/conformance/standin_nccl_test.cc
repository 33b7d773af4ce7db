#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/device/comm/conformance/emulated_job.h"
#include "core/device/comm/nccl_api.h"
#include "core/testing/ranks.h"
#include "core/testing/standin_nccl_file.h"

// The stand-in NCCL finds the faults that NCCL answers with a hang or with wrong data. Its ranks are threads here.

namespace lockstep::device {
namespace {

using nccl::Api;
using nccl::Code;

// A rank's communicator and stream.
struct Rank {
  const Api& api;
  nccl::Comm comm = nullptr;
  Stream stream = nullptr;

  Code Await(Code wanted) const {
    Code code = nccl::kSuccess;
    for (const Deadline deadline = Deadline::After(20); code != wanted && !deadline.Passed();) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (api.CommGetAsyncError(comm, &code) != nccl::kSuccess) return -1;
    }
    return code;
  }
  void Abort() { (void)api.CommAbort(std::exchange(comm, nullptr)); }
};

// Runs a part on two ranks. The process is a fork, because a fault may end it.
testing::Outcome RunRanks(const std::function<std::string(Rank& rank, int number)>& part) {
  testing::Ranks process(1, [&](int, const testing::Ranks::Report& report) {
    const Library& library = *lockstep_device_library();
    const auto api = nccl::Load({.file = testing::StandinNcclFile(), .folder = ""});
    if (!api.ok()) return report(api.status().ToString()), 1;
    nccl::UniqueId id;
    (void)(*api)->GetUniqueId(&id);
    std::vector<std::string> errors(2);
    std::vector<std::thread> threads;
    for (int number : {0, 1}) {
      threads.emplace_back([&, number] {
        Rank rank{**api};
        nccl::Config config;
        (void)library.create_stream(&rank.stream);
        if ((*api)->CommInitRankConfig(&rank.comm, 2, id, number, &config) != nccl::kInProgress ||
            rank.Await(nccl::kSuccess) != nccl::kSuccess) {
          errors[number] = "not connected";
          return;
        }
        errors[number] = part(rank, number);
        (void)library.synchronize_stream(rank.stream);
        if (rank.comm != nullptr) rank.Abort();
        (void)library.destroy_stream(rank.stream);
      });
    }
    for (std::thread& thread : threads) thread.join();
    report(errors[0] + errors[1]);
    return errors[0].empty() && errors[1].empty() ? 0 : 1;
  });
  return process.Wait(60)[0];
}

TEST(StandinNcclTest, MessagesOfOtherLengthsAreFound) {
  const testing::Outcome outcome = RunRanks([](Rank& rank, int number) -> std::string {
    static char data[8];  // the stream reads it after this function
    if (number == 0) {
      (void)rank.api.Send(data, 4, nccl::Type::kUInt8, 1, rank.comm, rank.stream);
      return "";
    }
    (void)rank.api.Recv(data, 8, nccl::Type::kUInt8, 0, rank.comm, rank.stream);
    return rank.Await(nccl::kInvalidUsage) == nccl::kInvalidUsage ? "" : "not found";
  });
  EXPECT_EQ(outcome.exit_code, 0) << outcome.report;
}

TEST(StandinNcclTest, CallsInAnotherOrderAreFound) {
  const testing::Outcome outcome = RunRanks([](Rank& rank, int number) -> std::string {
    static char data[2][8];
    for (const size_t bytes : {number == 0 ? 4 : 8, number == 0 ? 8 : 4}) {
      (void)(number == 0 ? rank.api.Send(data[0], bytes, nccl::Type::kUInt8, 1, rank.comm, rank.stream)
                         : rank.api.Recv(data[1], bytes, nccl::Type::kUInt8, 0, rank.comm, rank.stream));
    }
    if (number == 1) return rank.Await(nccl::kInvalidUsage) == nccl::kInvalidUsage ? "" : "not found";
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    rank.Abort();
    return "";
  });
  EXPECT_EQ(outcome.exit_code, 0) << outcome.report;
}

TEST(StandinNcclTest, AnAbortEndsWorkThatWaits) {
  const testing::Outcome outcome = RunRanks([](Rank& rank, int number) -> std::string {
    static char data[8];
    if (number == 1) return "";  // never sends
    (void)rank.api.Recv(data, 8, nccl::Type::kUInt8, 1, rank.comm, rank.stream);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    rank.Abort();
    return lockstep_device_library()->synchronize_stream(rank.stream) == kSuccess ? "" : "an error of the stream";
  });
  EXPECT_EQ(outcome.exit_code, 0) << outcome.report;
}

TEST(StandinNcclTest, AGroupThatStaysOpenEndsTheProcess) {
  const testing::Outcome outcome = RunRanks([](Rank& rank, int number) -> std::string {
    if (number == 0) (void)rank.api.GroupStart();
    return "";
  });
  EXPECT_EQ(outcome.signal, SIGABRT) << outcome.report;
}

TEST(StandinNcclTest, ACommunicatorThatWasAbortedIsNotUsedAgain) {
  const testing::Outcome outcome = RunRanks([](Rank& rank, int) -> std::string {
    (void)rank.api.CommAbort(rank.comm);
    Code code;
    (void)rank.api.CommGetAsyncError(rank.comm, &code);
    return "";
  });
  EXPECT_EQ(outcome.signal, SIGABRT) << outcome.report;
}

}  // namespace
}  // namespace lockstep::device
