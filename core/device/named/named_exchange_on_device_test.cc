#include "core/device/named/named_exchange_on_device.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/device/named/test_tensors.h"
#include "core/testing/oracle.h"

// Tests beyond the tests of all named lanes (backends_test.cc): tensors on CPUs beside tensors on devices, sizes
// that need several collectives, and faults while the devices work.

namespace lockstep::device {
namespace {

class NamedOnDeviceTest : public ::testing::TestWithParam<JobShape> {};
class NamedOnDeviceFaultsTest : public ::testing::TestWithParam<JobShape> {};

// A request with its tensor on the CPU.
std::future<Outcome> AskOnCpu(NamedLane& lane, NamedRequest request, const std::vector<float>& in) {
  auto [work, future] = WorkOf(std::move(request), static_cast<const void*>(in.data()), /*is_placed=*/false);
  lane.Submit(std::move(work));
  return std::move(future);
}

// Promise (gpu.md): ranks that disagree about the place of a tensor get an error that names them, and continue.
TEST_P(NamedOnDeviceTest, DisagreementAboutThePlaceIsNamed) {
  RunRanks(GetParam(), [](NamedLane& lane) {
    const std::vector<float> in(4, 1);
    for (const NamedKind kind : {NamedKind::kAllReduce, NamedKind::kAllGather, NamedKind::kBroadcast}) {
      const NamedRequest request = Request(kind, "grad", {4});
      const Status status = (lane.rank() == 0 ? Ask(lane, request, in) : AskOnCpu(lane, request, in)).get().status;
      EXPECT_EQ(status, FailedPrecondition(StrCat(NamedKindName(kind),
                                                  " 'grad': the ranks differ in the place of the tensor: rank 0 has a "
                                                  "GPU; ",
                                                  lane.size() == 2 ? "rank 1 has" : "ranks 1 and 2 have", " the CPU")));
    }
    const std::vector<float> wanted(4, static_cast<float>(lane.size()));
    EXPECT_EQ(Ask(lane, Request(NamedKind::kAllReduce, "grad", {4}), in).get().As<float>(), wanted);
  });
}

TEST_P(NamedOnDeviceTest, ATensorWithoutAStreamIsRefused) {
  RunRanks(GetParam(), [](NamedLane& lane) {
    const std::vector<float> in(4, 1);
    auto [work, future] = WorkOf(Request(NamedKind::kAllReduce, "x", {4}), in);
    if (lane.rank() == 1) work.stream = nullptr;
    lane.Submit(std::move(work));
    EXPECT_EQ(future.get().status,
              InvalidArgument("rank 1: allreduce 'x': a tensor on a GPU, and no stream of its caller"));
  });
}

// Both kinds in any order, with barriers between them: the host's communicator serves both.
TEST_P(NamedOnDeviceTest, TensorsOfBothPlacesShareALane) {
  RunRanks(GetParam(), [](NamedLane& lane) {
    const std::vector<float> in(3000, static_cast<float>(lane.rank() + 1)), small(5, 1);
    const auto ranks = static_cast<float>(lane.size());
    for (int i = 0; i < 30; ++i) {
      std::vector<std::future<Outcome>> futures;
      for (int tensor = 0; tensor < 4; ++tensor) {
        const NamedRequest request = Request(NamedKind::kAllReduce, StrCat("x", tensor), {3000});
        futures.push_back(tensor % 2 == 0 ? Ask(lane, request, in) : AskOnCpu(lane, request, in));
      }
      EXPECT_EQ(Await(lane, Barrier("between")), OkStatus());
      futures.push_back(AskOnCpu(lane, Request(NamedKind::kAllReduce, "last", {5}), small));
      const std::vector<float> wanted(3000, ranks * (ranks + 1) / 2);
      for (int tensor = 0; tensor < 4; ++tensor) EXPECT_EQ(futures[tensor].get().As<float>(), wanted);
      EXPECT_EQ(futures[4].get().As<float>(), std::vector<float>(5, ranks));
    }
  });
}

// All kinds, several tensors of several types at once, have the bits of the CPU.
TEST_P(NamedOnDeviceTest, EqualsTheCpuBitForBit) {
  RunRanks(GetParam(), [](NamedLane& lane) {
    uint64_t seed = 0;
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16, DType::kInt8, DType::kUInt8,
          DType::kInt16, DType::kUInt16, DType::kInt32, DType::kUInt32, DType::kInt64, DType::kUInt64}) {
      std::vector<NamedWork> works;
      std::vector<std::future<Outcome>> futures;
      std::vector<std::string> tensors;
      tensors.reserve(40);
      const auto add = [&](NamedRequest request) {
        request.dtype = dtype;
        tensors.push_back(testing::RandomTensor(dtype, request.Elements(), 1000 * ++seed + lane.rank()));
        for (const bool on_device : {true, false}) {
          NamedRequest own = request;
          own.name += on_device ? " on the device" : " on the CPU";
          auto [work, future] = WorkOf(own, static_cast<const void*>(tensors.back().data()), on_device);
          works.push_back(std::move(work));
          futures.push_back(std::move(future));
        }
      };
      for (const int64_t rows : {int64_t{0}, int64_t{7}, int64_t{5000}}) {
        for (const double factor : {1.0, 0.5}) {
          NamedRequest request = Request(NamedKind::kAllReduce, StrCat("sum ", rows, " ", factor), {rows, 2});
          request.prescale = factor;
          request.postscale = 3 * factor;
          add(request);
          request = Request(NamedKind::kReduceScatter, StrCat("mean ", rows, " ", factor), {rows, 2});
          request.reduction = NamedReduction::kMean;
          request.prescale = 4 * factor;
          request.postscale = factor;
          add(request);
          if (!IsFloatingPoint(dtype)) continue;
          request.kind = NamedKind::kAllReduce;
          request.name = StrCat("adasum ", rows, " ", factor);
          request.reduction = NamedReduction::kAdasum;
          add(request);
        }
        NamedRequest mean = Request(NamedKind::kAllReduce, StrCat("mean of all ", rows), {rows});
        mean.reduction = NamedReduction::kMean;
        add(mean);
        add(Request(NamedKind::kAllGather, StrCat("gather ", rows), {rows + lane.rank(), 3}));
        NamedRequest exchange = Request(NamedKind::kAllToAll, StrCat("exchange ", rows), {rows * lane.size(), 1});
        exchange.splits.assign(lane.size(), rows);
        add(exchange);
        NamedRequest broadcast = Request(NamedKind::kBroadcast, StrCat("broadcast ", rows), {rows});
        broadcast.root = lane.size() - 1;
        add(broadcast);
      }
      std::vector<std::string> names;
      for (const NamedWork& work : works) names.push_back(work.request.name);
      lane.Submit(std::move(works));
      for (size_t i = 0; i < futures.size(); i += 2) {
        const Outcome device = futures[i].get(), cpu = futures[i + 1].get();
        ASSERT_EQ(device.status, OkStatus()) << names[i];
        ASSERT_EQ(cpu.status, OkStatus()) << names[i + 1];
        EXPECT_EQ(device.shape, cpu.shape) << names[i];
        EXPECT_EQ(device.more.received, cpu.more.received) << names[i];
        EXPECT_EQ(testing::FirstDifference(dtype, {device.bytes.begin(), device.bytes.end()},
                                           {cpu.bytes.begin(), cpu.bytes.end()}),
                  "")
            << names[i] << " of " << DTypeName(dtype);
      }
    }
  });
}

// Gathers of several types share a bucket, where tensors begin at any byte.
TEST_P(NamedOnDeviceTest, TypesMixInOneBucket) {
  RunRanks(GetParam(), [](NamedLane& lane) {
    const std::vector<uint8_t> bytes(3 + lane.rank(), static_cast<uint8_t>(lane.rank()));
    const std::vector<double> doubles(2, lane.rank() + 0.5);
    NamedRequest of_bytes = Request(NamedKind::kAllGather, "bytes", {static_cast<int64_t>(bytes.size())});
    of_bytes.dtype = DType::kUInt8;
    NamedRequest of_doubles = Request(NamedKind::kAllGather, "doubles", {2});
    of_doubles.dtype = DType::kFloat64;
    for (const NamedRequest& member : Group("g", {of_bytes, of_doubles})) {
      (member.name == "bytes" ? of_bytes : of_doubles) = member;
    }
    auto [first, got_bytes] = WorkOf(of_bytes, bytes);
    auto [second, got_doubles] = WorkOf(of_doubles, doubles);
    std::vector<NamedWork> works;
    works.push_back(std::move(first));
    works.push_back(std::move(second));
    lane.Submit(std::move(works));
    std::vector<uint8_t> wanted_bytes;
    std::vector<double> wanted_doubles;
    for (int r = 0; r < lane.size(); ++r) {
      wanted_bytes.insert(wanted_bytes.end(), 3 + r, static_cast<uint8_t>(r));
      wanted_doubles.insert(wanted_doubles.end(), 2, r + 0.5);
    }
    EXPECT_EQ(got_bytes.get().As<uint8_t>(), wanted_bytes);
    EXPECT_EQ(got_doubles.get().As<double>(), wanted_doubles);
  });
}

void GiveDevices(const JobShape& shape, const std::function<void(int rank, NamedExchangeOptions&)>& adjust,
                 const LanePart& part) {
  RunThreads(shape, [&](const ContextOptions& context) {
    NamedExchangeOptions devices = EmulatedExchange(context);
    adjust(context.rank, devices);
    NamedLaneOptions options;
    options.devices = devices.devices.library == nullptr ? nullptr : NamedExchangeOnDevice(devices);
    auto lane = NamedLane::Create(context, options);
    ASSERT_TRUE(lane.ok()) << lane.status().ToString();
    part(**lane);
    (void)Await(**lane, Barrier("end of the test"));
  });
}

// A group that is larger than the memory for one exchange takes several.
TEST_P(NamedOnDeviceTest, LargeGroupsTakeSeveralCollectives) {
  GiveDevices(
      GetParam(), [](int, NamedExchangeOptions& devices) { devices.fusion_bytes = 1000; },
      [](NamedLane& lane) {
        const std::vector<float> in(100, 1);
        std::vector<NamedRequest> members;
        for (int i = 0; i < 7; ++i) members.push_back(Request(NamedKind::kAllReduce, StrCat("x", i), {100}));
        for (auto& outcome : AskAll(lane, Group("g", members), in)) {
          EXPECT_EQ(outcome.get().As<float>(), std::vector<float>(100, static_cast<float>(lane.size())));
        }
      });
}

TEST_P(NamedOnDeviceTest, ARankWithoutADeviceIsNamedAndAllContinue) {
  GiveDevices(
      GetParam(),
      [](int rank, NamedExchangeOptions& devices) {
        if (rank == 1) devices.devices.library = nullptr;
      },
      [](NamedLane& lane) {
        const std::vector<float> in(100, 1);
        for (int i = 0; i < 2; ++i) {
          const Status status = Ask(lane, Request(NamedKind::kAllReduce, "x", {100}), in).get().status;
          EXPECT_EQ(status, FailedPrecondition("allreduce 'x': rank 1: a collective has tensors on GPUs, and this "
                                               "rank's named lane has no GPU; all ranks need one"));
        }
        EXPECT_EQ(AskOnCpu(lane, Request(NamedKind::kAllReduce, "x", {100}), in).get().As<float>(),
                  std::vector<float>(100, static_cast<float>(lane.size())));
      });
}

TEST_P(NamedOnDeviceTest, ARankWithoutMemoryForTheBucketIsNamedAndAllContinue) {
  std::atomic<bool> has_memory = false;
  GiveDevices(
      GetParam(),
      [&](int rank, NamedExchangeOptions& devices) {
        if (rank != 1) return;
        devices.devices.allocate = [&](int64_t bytes) -> Result<std::shared_ptr<void>> {
          if (!has_memory) return ResourceExhausted(StrCat(bytes, " bytes are too many"));
          const auto memory = std::make_shared<TensorMemory>(bytes);
          return std::shared_ptr<void>(memory, memory->data());
        };
      },
      [&](NamedLane& lane) {
        const std::vector<float> in(100, 1);
        const auto requests =
            Group("g", {Request(NamedKind::kAllReduce, "x", {100}), Request(NamedKind::kAllReduce, "y", {100})});
        for (auto& outcome : AskAll(lane, requests, in)) {
          const Status status = outcome.get().status;
          EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
          EXPECT_TRUE(Contains(status, "rank 1: 'x and 1 more': no memory to exchange it in: 800 bytes"))
              << status.ToString();
        }
        EXPECT_EQ(Await(lane, Barrier("all have it")), OkStatus());
        has_memory = true;
        EXPECT_EQ(Await(lane, Barrier("there is memory")), OkStatus());
        for (auto& outcome : AskAll(lane, requests, in)) {
          EXPECT_EQ(outcome.get().As<float>(), std::vector<float>(100, static_cast<float>(lane.size())));
        }
      });
}

// Many batches are in the streams at once, and buckets are used again.
TEST_P(NamedOnDeviceTest, ManyBatchesInFlightKeepTheOrderOfStreams) {
  RunRanks(GetParam(), [](NamedLane& lane) {
    constexpr int kSteps = 20, kTensors = 5;
    std::vector<std::vector<float>> inputs;
    std::vector<std::future<Outcome>> futures;
    inputs.reserve(kSteps * kTensors);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<NamedWork> works;
      for (int i = 0; i < kTensors; ++i) {
        inputs.emplace_back(4000, static_cast<float>(lane.rank() + step * i));
        auto [work, future] = WorkOf(Request(NamedKind::kAllReduce, StrCat("x", step, " ", i), {4000}), inputs.back());
        works.push_back(std::move(work));
        futures.push_back(std::move(future));
      }
      lane.Submit(std::move(works));
    }
    const int ranks = lane.size();
    for (int step = 0; step < kSteps; ++step) {
      for (int i = 0; i < kTensors; ++i) {
        const int of_ranks = ranks * (ranks - 1) / 2;
        const auto wanted = static_cast<float>(of_ranks + ranks * step * i);
        EXPECT_EQ(futures[step * kTensors + i].get().As<float>(), std::vector<float>(4000, wanted));
      }
    }
  });
}

// Requests until one fails; returns its error.
Status ReduceUntilError(NamedLane& lane, int64_t count) {
  const std::vector<float> in(count, 1);
  while (true) {
    const Status status = Ask(lane, Request(NamedKind::kAllReduce, "grad", {count}), in).get().status;
    if (!status.ok()) return status;
  }
}

// Promise (gpu.md): a rank that dies while the devices work is named by all others; all later requests have the error.
TEST_P(NamedOnDeviceFaultsTest, ARankThatDiesInABatchIsNamed) {
  for (const int victim : {0, GetParam().size - 1}) {
    for (const int when_ms : {5, 40}) {
      SCOPED_TRACE(StrCat("rank ", victim, " dies after ", when_ms, " ms"));
      const testing::Shared<std::atomic<int>> heard(0);
      RunProcesses(GetParam(),
                   [&](std::unique_ptr<NamedLane> lane) -> std::string {
                     std::thread killer;
                     if (lane->rank() == victim) {
                       killer = std::thread([&] {
                         std::this_thread::sleep_for(std::chrono::milliseconds(when_ms));
                         raise(SIGKILL);
                       });
                     }
                     const Status status = ReduceUntilError(*lane, when_ms == 5 ? 1000 : 100'000);
                     const Status later = Await(*lane, Barrier("later"));
                     ++*heard;
                     if (lane->rank() == 0) testing::AwaitCount(*heard, lane->size() - 1);
                     for (const Status& error : {status, later}) {
                       const bool named = error.code() == StatusCode::kUnavailable &&
                                          Contains(error, StrCat("rank ", victim)) && Contains(error, "died");
                       if (!named) return StrCat("got ", error.ToString());
                     }
                     return "";
                   },
                   {victim});
    }
  }
}

// The other devices wait in the collective already.
TEST_P(NamedOnDeviceFaultsTest, ARankThatDiesWhileTheOtherDevicesWaitIsNamed) {
  const int victim = GetParam().size - 1;
  const testing::Shared<std::atomic<int>> heard(0);
  RunProcesses(
      GetParam(),
      [&](std::unique_ptr<NamedLane> lane) -> std::string {
        const std::vector<float> in(1000, 1);
        if (const Status s = Ask(*lane, Request(NamedKind::kAllReduce, "first", {1000}), in).get().status; !s.ok()) {
          return s.ToString();
        }
        if (lane->rank() == victim) {
          (void)lockstep_device_library()->call_host(
              ComputeStream::OfThisThread()->get(),
              [](void*) { std::this_thread::sleep_for(std::chrono::seconds(600)); }, nullptr);
        }
        std::future<Outcome> ended = Ask(*lane, Request(NamedKind::kAllReduce, "grad", {1000}), in);
        if (lane->rank() == victim) {
          std::this_thread::sleep_for(std::chrono::milliseconds(500));
          raise(SIGKILL);
        }
        const Status status = ended.get().status;
        ++*heard;
        if (lane->rank() == 0) testing::AwaitCount(*heard, lane->size() - 1);
        const bool named = status.code() == StatusCode::kUnavailable && Contains(status, StrCat("rank ", victim)) &&
                           Contains(status, "died") && Contains(status, "allreduce 'grad'");
        return named ? "" : StrCat("got ", status.ToString());
      },
      {victim});
}

// A rank that leaves after its part disturbs nobody's results; one that others wait for is named.
TEST_P(NamedOnDeviceFaultsTest, ARankThatLeavesAfterItsPartDisturbsNobody) {
  for (int i = 0; i < 5; ++i) {
    RunProcesses(GetParam(), [](std::unique_ptr<NamedLane> lane) -> std::string {
      const std::vector<float> in(20'000, 1);
      const Outcome got = Ask(*lane, Request(NamedKind::kAllReduce, "last", {20'000}), in).get();
      if (!got.status.ok()) return got.status.ToString();
      return got.As<float>() == std::vector<float>(20'000, static_cast<float>(lane->size())) ? "" : "a wrong sum";
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, NamedOnDeviceTest,
                         ::testing::Values(JobShape{"shm", 2, "", "nccl"}, JobShape{"shm", 3, "", "nccl"},
                                           JobShape{"shm", 2, "", "staged"}, JobShape{"shm", 3, "", "staged"}),
                         JobShapeName);
INSTANTIATE_TEST_SUITE_P(Backends, NamedOnDeviceFaultsTest,
                         ::testing::Values(JobShape{"shm", 3, "", "nccl"}, JobShape{"auto", 3, "aab", "nccl"},
                                           JobShape{"shm", 3, "", "staged"}),
                         JobShapeName);

}  // namespace
}  // namespace lockstep::device
