#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/collective/adasum.h"
#include "core/comm/job/context.h"
#include "core/device/comm/conformance/emulated_job.h"
#include "core/testing/job.h"
#include "core/testing/oracle.h"

// A DeviceCommunicator has more than a Communicator: calls in flight, channels, NCCL's own sums and Adasum.

namespace lockstep::device {
namespace {

class DevicesTest : public ::testing::TestWithParam<JobShape> {};

std::string RunWith(const ContextOptions& options, const std::function<void(CommOptions&)>& adjust,
                    const DevicePart& part) {
  auto context = Context::Create(options);
  if (!context.ok()) return context.status().ToString();
  CommOptions devices = EmulatedOptions(options);
  adjust(devices);
  const auto rank = OnHostMemory::Create(devices, (*context)->communicator());
  return rank.ok() ? part(static_cast<OnHostMemory&>(**rank)) : rank.status().ToString();
}

// Many calls are in the streams at once, and nothing waits for them but the order of streams.
std::string ManyInFlight(OnHostMemory& rank) {
  constexpr int kCalls = 30;
  constexpr int64_t kCount = 20'000;
  std::vector<std::vector<float>> hosts;
  std::vector<std::unique_ptr<OnHostMemory::Tensor>> tensors;
  std::vector<Ticket> tickets;
  std::atomic<int> ends{0};
  for (int call = 0; call < kCalls; ++call) {
    hosts.emplace_back(kCount, static_cast<float>(rank.rank() + call));
    tensors.push_back(std::make_unique<OnHostMemory::Tensor>(rank, hosts.back().data(), kCount * 4));
    if (const Status s = tensors.back()->CopyIn(); !s.ok()) return s.ToString();
    void* const data = tensors.back()->data();
    const auto ticket = rank.on_devices().AllReduce(StrCat("x", call), ReduceOp::kSum, DType::kFloat32, kCount, data,
                                                    data, rank.compute());
    if (!ticket.ok()) return ticket.status().ToString();
    ticket->Then([&](const Status& status) { ends += status.ok() ? 1 : 1000; });
    tickets.push_back(*ticket);
  }
  for (int call = 0; call < kCalls; ++call) {
    if (const Status s = tickets[call].LetWait(rank.compute()); !s.ok()) return s.ToString();
    (void)rank.library().copy(rank.compute(), hosts[call].data(), tensors[call]->data(), kCount * 4);
  }
  (void)rank.library().synchronize_stream(rank.compute());
  for (const Ticket& ticket : tickets) {
    if (const Status s = ticket.Wait(); !s.ok()) return s.ToString();
  }
  const int size = rank.size();
  for (int call = 0; call < kCalls; ++call) {
    const int of_ranks = size * (size - 1) / 2;
    const auto wanted = static_cast<float>(of_ranks + size * call);
    for (const float got : hosts[call]) {
      if (got != wanted) return StrCat("call ", call, ": got ", got, ", wanted ", wanted);
    }
  }
  return ends == kCalls ? "" : StrCat(ends.load(), " ends");
}

TEST_P(DevicesTest, CallsInFlightKeepTheOrderOfStreams) { ExpectAllWell(GetParam(), OnDevices(&ManyInFlight)); }

// Others use the host's communicator between calls of devices, which have not ended then.
TEST_P(DevicesTest, TheHostIsFreeAfterItsRelease) {
  ExpectAllWell(GetParam(), OnDevices([](OnHostMemory& rank) -> std::string {
                  std::vector<float> ones(5000, 1);
                  for (int round = 0; round < 20; ++round) {
                    std::vector<std::unique_ptr<OnHostMemory::Tensor>> tensors;
                    std::vector<Ticket> tickets;
                    for (int call = 0; call < 3; ++call) {
                      tensors.push_back(std::make_unique<OnHostMemory::Tensor>(rank, ones.data(), 20'000));
                      if (const Status s = tensors.back()->CopyIn(); !s.ok()) return s.ToString();
                      const auto ticket =
                          rank.on_devices().AllReduce("device", ReduceOp::kSum, DType::kFloat32, 5000,
                                                      tensors.back()->data(), tensors.back()->data(), rank.compute());
                      if (!ticket.ok()) return ticket.status().ToString();
                      tickets.push_back(*ticket);
                    }
                    rank.on_devices().ReleaseHost();
                    int64_t sum = 1;
                    const Status s = rank.host().AllReduce("host", ReduceOp::kSum, DType::kInt64, 1, &sum, &sum);
                    if (!s.ok()) return s.ToString();
                    if (sum != rank.size()) return StrCat("the host's sum is ", sum);
                    for (const Ticket& ticket : tickets) {
                      if (const Status ended = ticket.Wait(); !ended.ok()) return ended.ToString();
                    }
                  }
                  return "";
                }));
}

// Promise (gpu.md): comm_pool_capacity communicators take turns.
TEST_P(DevicesTest, ChannelsTakeTurns) {
  Job job(GetParam(), [](const ContextOptions& options) {
    return RunWith(
        options, [](CommOptions& devices) { devices.channels = 3; }, &ManyInFlight);
  });
  job.ExpectSurvivorsWell();
}

// The CPU's bits, for all types, lists and empty tensors.
TEST_P(DevicesTest, AdasumHasTheBitsOfTheCpu) {
  ExpectAllWell(GetParam(), OnDevices([](OnHostMemory& rank) -> std::string {
                  const std::vector<int64_t> counts = {10, 0, 5000, 1, 9000};
                  int64_t count = 0;
                  for (const int64_t each : counts) count += each;
                  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
                    std::string mine = testing::RandomTensor(dtype, count, 77 + rank.rank());
                    std::string wanted(mine.size(), '\0');
                    Status s = AdasumAllReduce(rank.host(), "cpu", dtype, counts, mine.data(), wanted.data());
                    if (s.ok()) s = rank.Adasum("device", dtype, counts, mine.data());
                    if (!s.ok()) return s.ToString();
                    const std::string difference = testing::FirstDifference(dtype, mine, wanted);
                    if (!difference.empty()) return StrCat(DTypeName(dtype), ": ", difference);
                  }
                  return "";
                }));
}

// Whole numbers, whose sums are exact in any order.
TEST_P(DevicesTest, NativeSumsAreNccls) {
  if (GetParam().device != "nccl") return;  // an option of that backend
  const DevicePart part = [](OnHostMemory& rank) -> std::string {
    const int64_t size = rank.size();
    for (const int64_t count : {int64_t{0}, int64_t{5}, int64_t{50'000}}) {
      std::vector<float> sums(count * size, static_cast<float>(rank.rank()));
      Status s = rank.AllReduce("sum", ReduceOp::kSum, DType::kFloat32, count * size, sums.data(), sums.data());
      if (!s.ok()) return s.ToString();
      for (const float sum : sums) {
        const int64_t wanted = size * (size - 1) / 2;
        if (sum != static_cast<float>(wanted)) return StrCat("sum ", sum);
      }
      std::vector<int32_t> all(count * size, rank.rank()), own(count);
      s = rank.ReduceScatter("max", ReduceOp::kMax, DType::kInt32, std::vector<int64_t>(size, count), all.data(),
                             own.data());
      if (!s.ok()) return s.ToString();
      for (const int32_t max : own) {
        if (max != size - 1) return StrCat("max ", max);
      }
    }
    // NCCL does not reduce bools.
    std::vector<uint8_t> flags(10, rank.rank() == 0 ? 1 : 0);
    const Status s = rank.AllReduce("or", ReduceOp::kSum, DType::kBool, 10, flags.data(), flags.data());
    return !s.ok() ? s.ToString() : flags[9] == 1 ? "" : "no or";
  };
  Job job(GetParam(), [&](const ContextOptions& options) {
    return RunWith(
        options, [](CommOptions& devices) { devices.native_sums = true; }, part);
  });
  job.ExpectSurvivorsWell();
}

// Two lanes have no common order: rank 0 is in a call of the first one, while the others make calls of the second one.
TEST_P(DevicesTest, TwoCommunicatorsDoNotWaitForEachOther) {
  const std::string second = testing::FreeLocalAddress();
  const JobShape shape = GetParam();
  const auto start = [](OnHostMemory& rank, const OnHostMemory::Tensor& tensor) {
    return rank.on_devices().AllReduce("x", ReduceOp::kSum, DType::kFloat32, 1000, tensor.data(), tensor.data(),
                                       rank.compute());
  };
  const auto calls = [start](OnHostMemory& one, OnHostMemory& other) -> std::string {
    std::vector<float> memory(1000, 1);
    const OnHostMemory::Tensor of_one(one, memory.data(), 4000), of_other(other, memory.data(), 4000);
    std::vector<Result<Ticket>> tickets;
    std::thread first_of_rank_0;
    if (one.rank() == 0) first_of_rank_0 = std::thread([&] { tickets.push_back(start(one, of_one)); });
    std::string error;
    for (int i = 0; i < 3 && error.empty(); ++i) {
      const auto ticket = start(other, of_other);
      const Status status = ticket.ok() ? ticket->Wait() : ticket.status();
      if (!status.ok()) error = status.ToString();
    }
    if (one.rank() != 0) tickets.push_back(start(one, of_one));
    if (first_of_rank_0.joinable()) first_of_rank_0.join();
    const Status status = tickets[0].ok() ? tickets[0]->Wait() : tickets[0].status();
    return status.ok() ? error : status.ToString();
  };
  Job job(shape, [&](const ContextOptions& options) {
    const auto none = [](CommOptions&) {};
    return RunWith(options, none, [&](OnHostMemory& one) {
      return RunWith(JobOptions(shape, second, options.rank), none,
                     [&](OnHostMemory& other) { return calls(one, other); });
    });
  });
  job.ExpectSurvivorsWell();
}

TEST_P(DevicesTest, ARankWithoutNcclFailsOnAll) {
  if (GetParam().device != "nccl" || GetParam().size == 1) return;
  Job job(GetParam(), [](const ContextOptions& options) -> std::string {
    const std::string error = RunWith(
        options,
        [&](CommOptions& devices) {
          if (options.rank == 1) devices.nccl.file = "/nowhere/libnccl.so.2";
        },
        [](OnHostMemory&) { return "no error"; });
    const bool good = error.find("FAILED_PRECONDITION: rank 1: NCCL cannot be loaded: ") != std::string::npos &&
                      error.find("/nowhere/libnccl.so.2 (LOCKSTEP_NCCL): ") != std::string::npos;
    return good ? "" : error;
  });
  job.ExpectSurvivorsWell();
}

TEST_P(DevicesTest, RanksWithOtherOptionsAreShownBoth) {
  if (GetParam().device != "nccl" || GetParam().size == 1) return;
  Job job(GetParam(), [](const ContextOptions& options) -> std::string {
    const std::string error = RunWith(
        options, [&](CommOptions& devices) { devices.channels = options.rank == 0 ? 1 : 2; },
        [](OnHostMemory&) { return "no error"; });
    const bool good =
        error.find("nccl, 1 channels") != std::string::npos && error.find("nccl, 2 channels") != std::string::npos;
    return good ? "" : error;
  });
  job.ExpectSurvivorsWell();
}

INSTANTIATE_TEST_SUITE_P(Backends, DevicesTest,
                         ::testing::Values(JobShape{"shm", 1, "", "nccl"}, JobShape{"shm", 2, "", "nccl"},
                                           JobShape{"shm", 3, "", "nccl"}, JobShape{"gloo", 2, "", "nccl"},
                                           JobShape{"shm", 1, "", "staged"}, JobShape{"shm", 2, "", "staged"}),
                         JobShapeName);

}  // namespace
}  // namespace lockstep::device
