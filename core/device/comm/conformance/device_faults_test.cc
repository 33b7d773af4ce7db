#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/job/context.h"
#include "core/device/comm/conformance/emulated_job.h"
#include "core/testing/job.h"
#include "core/testing/long_tests.h"
#include "core/testing/ranks.h"

// Faults while the devices work. The host's threads have already compared the call, so no collective of the host sees
// that a kernel waits. Earlier faults are in core/comm/conformance/faults_test.cc, which runs here as well.

namespace lockstep::device {
namespace {

using Clock = std::chrono::steady_clock;

bool Contains(const Status& status, std::initializer_list<std::string> parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [&](const std::string& part) { return status.message().find(part) != std::string::npos; });
}

// A moment in memory that ranks share, and the longest time from it to an error.
class Moment {
 public:
  void Set() { ticks_->store(Clock::now().time_since_epoch().count()); }
  double Seconds() const {
    return std::chrono::duration<double>(Clock::now().time_since_epoch() - Clock::duration(ticks_->load())).count();
  }
  void NoteError() const {
    const auto microseconds = static_cast<int64_t>(Seconds() * 1e6);
    for (int64_t longest = *longest_;
         longest < microseconds && !longest_->compare_exchange_weak(longest, microseconds);)
      continue;
  }
  double longest_s() const { return static_cast<double>(*longest_) / 1e6; }

 private:
  testing::Shared<std::atomic<int64_t>> ticks_{0}, longest_{0};
};

// Reduces in place until a call fails; returns its error.
Status ReduceUntilError(OnHostMemory& rank, int64_t count) {
  std::vector<float> memory(count);
  Status status;
  while (status.ok()) {
    status = rank.AllReduce("loop", ReduceOp::kSum, DType::kFloat32, count, memory.data(), memory.data());
  }
  return status;
}

// Runs `fault` on a thread after the time, while the rank is in a collective.
std::thread After(std::chrono::microseconds time, std::function<void()> fault) {
  return std::thread([time, fault = std::move(fault)] {
    std::this_thread::sleep_for(time);
    fault();
  });
}

class DeviceFaultsTest : public ::testing::TestWithParam<JobShape> {
 protected:
  int last() const { return GetParam().size - 1; }
  int Moments(int all) const { return kSanitized || !testing::RunsLongTests() ? all / 4 : all; }
};

// Promise (gpu.md): a killed rank is named by all others, with the call, at any moment of its device.
TEST_P(DeviceFaultsTest, ARankKilledAtAnyMomentIsNamed) {
  std::mt19937 random(3);
  double longest_s = 0;
  for (int i = 0; i < Moments(20); ++i) {
    Moment death;
    const std::chrono::microseconds when(random() % 60000);
    SCOPED_TRACE(StrCat("after ", when.count(), " us"));
    Job job(GetParam(), OnDevices([&, victim = last()](OnHostMemory& rank) -> std::string {
              std::thread killer;
              if (rank.rank() == victim) {
                killer = After(when, [&] {
                  death.Set();
                  testing::DieNow();
                });
              }
              const Status status = ReduceUntilError(rank, i % 2 == 0 ? 300'000 : 1000);
              death.NoteError();
              const bool good = status.code() == StatusCode::kUnavailable &&
                                Contains(status, {StrCat("rank ", victim), "died", "allreduce 'loop'"});
              return good ? "" : StrCat("got ", status.ToString());
            }));
    job.ExpectSurvivorsWell({last()});
    longest_s = std::max(longest_s, death.longest_s());
  }
  std::printf("%s: a death was reported after at most %.2f s\n", ToString(GetParam()).c_str(), longest_s);
  EXPECT_LT(longest_s, kSanitized ? 60 : 20);
}

// To other hosts a stopped rank is silent, which their watch sees (core/comm/liveness).
class DeviceStopsTest : public DeviceFaultsTest {};

// Promise (gpu.md): a stopped rank is named after stopped_timeout.
TEST_P(DeviceStopsTest, ARankStoppedAtAnyMomentIsNamed) {
  const Adjust impatient = [](ContextOptions& options) { options.stopped_timeout_s = 0.5; };
  std::mt19937 random(4);
  double longest_s = 0;
  for (int i = 0; i < Moments(10); ++i) {
    Moment stop;
    const std::chrono::microseconds when(random() % 60000);
    SCOPED_TRACE(StrCat("after ", when.count(), " us"));
    Job job(GetParam(), OnDevices([&, victim = last()](OnHostMemory& rank) -> std::string {
              std::thread stopper;
              if (rank.rank() == victim) {
                stopper = After(when, [&] {
                  stop.Set();
                  testing::FreezeNow();
                });
              }
              const Status status = ReduceUntilError(rank, i % 2 == 0 ? 300'000 : 1000);
              stop.NoteError();
              const bool good = status.code() == StatusCode::kUnavailable &&
                                Contains(status, {StrCat("rank ", victim, " (process "), ") has been stopped for 0.5 s",
                                                  "allreduce 'loop'"});
              return good ? "" : StrCat("got ", status.ToString());
            }),
            impatient);
    job.ExpectSurvivorsWell({last()});
    longest_s = std::max(longest_s, stop.longest_s());
  }
  std::printf("%s: a stop was reported after at most %.2f s\n", ToString(GetParam()).c_str(), longest_s);
  EXPECT_LT(longest_s, kSanitized ? 60 : 20);
}

// The victim's threads make the call, but its device never comes to it.
constexpr auto kForever = std::chrono::seconds(600);
void Occupy(void*) { std::this_thread::sleep_for(kForever); }

// Starts an allreduce of this rank's own memory, behind what is in its compute stream.
Result<Ticket> Start(OnHostMemory& rank, const OnHostMemory::Tensor& tensor) {
  return rank.on_devices().AllReduce("x", ReduceOp::kSum, DType::kFloat32, 1000, tensor.data(), tensor.data(),
                                     rank.compute());
}

// Promise (gpu.md): a rank whose device is late is named after the stall timeout.
TEST_P(DeviceFaultsTest, ALateDeviceIsNamed) {
  const Adjust impatient = [](ContextOptions& options) { options.stall_timeout_s = kSanitized ? 6 : 3; };
  Job job(GetParam(), OnDevices([victim = last()](OnHostMemory& rank) -> std::string {
            if (const Status s = rank.Barrier("together"); !s.ok()) return s.ToString();
            std::vector<float> memory(1000);
            const OnHostMemory::Tensor tensor(rank, memory.data(), 4000);
            if (rank.rank() == victim) (void)rank.library().call_host(rank.compute(), &Occupy, nullptr);
            const auto ticket = Start(rank, tensor);
            if (rank.rank() == victim) std::this_thread::sleep_for(kForever);
            const Status status = ticket.ok() ? ticket->Wait() : ticket.status();
            const bool good = status.code() == StatusCode::kDeadlineExceeded &&
                              Contains(status, {"nothing from ", StrCat("rank ", victim, " for "), "allreduce 'x'"});
            if (!good) return StrCat("got ", status.ToString());
            return rank.Barrier("after") == status ? "" : "another error after the first";
          }),
          impatient);
  job.ExpectSurvivorsWell({last()});
}

// The other devices are in the kernel already.
TEST_P(DeviceFaultsTest, ARankThatDiesWhileTheOtherDevicesWaitIsNamed) {
  Moment death;
  Job job(GetParam(), OnDevices([&, victim = last()](OnHostMemory& rank) -> std::string {
            if (const Status s = rank.Barrier("together"); !s.ok()) return s.ToString();
            std::vector<float> memory(1000);
            const OnHostMemory::Tensor tensor(rank, memory.data(), 4000);
            if (rank.rank() == victim) (void)rank.library().call_host(rank.compute(), &Occupy, nullptr);
            const auto ticket = Start(rank, tensor);
            if (rank.rank() == victim) {
              std::this_thread::sleep_for(std::chrono::milliseconds(500));
              death.Set();
              testing::DieNow();
            }
            const Status status = ticket.ok() ? ticket->Wait() : ticket.status();
            death.NoteError();
            const bool good = status.code() == StatusCode::kUnavailable &&
                              Contains(status, {StrCat("rank ", victim, " (process "), "died", "allreduce 'x'"});
            return good ? "" : StrCat("got ", status.ToString());
          }));
  job.ExpectSurvivorsWell({last()});
  std::printf("%s: reported after at most %.2f s\n", ToString(GetParam()).c_str(), death.longest_s());
}

// NCCL's abort of one communicator waits for the kernels of all: none is to wait for another one's.
TEST_P(DeviceFaultsTest, ADeathFreesAllChannelsThatWait) {
  Moment death;
  const Adjust several = [](ContextOptions& options) { options.device_channels = 3; };
  Job job(GetParam(), OnDevices([&, victim = last()](OnHostMemory& rank) -> std::string {
            if (const Status s = rank.Barrier("together"); !s.ok()) return s.ToString();
            std::vector<float> memory(1000);
            const OnHostMemory::Tensor one(rank, memory.data(), 4000), two(rank, memory.data(), 4000);
            if (rank.rank() == victim) (void)rank.library().call_host(rank.compute(), &Occupy, nullptr);
            const std::vector<Result<Ticket>> tickets = {Start(rank, one), Start(rank, two)};
            if (rank.rank() == victim) {
              std::this_thread::sleep_for(std::chrono::milliseconds(500));
              death.Set();
              testing::DieNow();
            }
            for (const Result<Ticket>& ticket : tickets) {
              const Status status = ticket.ok() ? ticket->Wait() : ticket.status();
              const bool good = status.code() == StatusCode::kUnavailable &&
                                Contains(status, {StrCat("rank ", victim, " (process "), "died"});
              if (!good) return StrCat("got ", status.ToString());
            }
            death.NoteError();
            (void)rank.library().synchronize_stream(rank.compute());
            return "";
          }),
          several);
  job.ExpectSurvivorsWell({last()});
  EXPECT_LT(death.longest_s(), kSanitized ? 60 : 15);
}

TEST_P(DeviceFaultsTest, AnAbortFreesTheDevicesThatWait) {
  Job job(GetParam(), OnDevices([victim = last()](OnHostMemory& rank) -> std::string {
            if (const Status s = rank.Barrier("together"); !s.ok()) return s.ToString();
            std::vector<float> memory(1000);
            const OnHostMemory::Tensor tensor(rank, memory.data(), 4000);
            std::atomic<bool> is_released{false};
            if (rank.rank() == victim) {
              (void)rank.library().call_host(
                  rank.compute(),
                  [](void* released) {
                    while (!*static_cast<std::atomic<bool>*>(released)) std::this_thread::yield();
                  },
                  &is_released);
            }
            const auto ticket = Start(rank, tensor);
            std::atomic<int> ends{0};
            if (ticket.ok()) ticket->Then([&](const Status&) { ++ends; });
            if (rank.rank() == victim) {
              std::this_thread::sleep_for(std::chrono::milliseconds(300));
              rank.Abort(Internal("the kernel was cancelled"));
              // NCCL is aborted on another thread. A device that continues earlier may do its part, which is no error.
              std::this_thread::sleep_for(std::chrono::milliseconds(500));
              is_released = true;
            }
            const Status status = ticket.ok() ? ticket->Wait() : ticket.status();
            (void)rank.library().synchronize_stream(rank.compute());
            if (status.code() != StatusCode::kCancelled || !Contains(status, {"the kernel was cancelled"})) {
              return StrCat("got ", status.ToString());
            }
            if (rank.rank() != victim && !Contains(status, {StrCat("rank ", victim, " aborted the job")})) {
              return StrCat("got ", status.ToString());
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
            return ends == 1 ? "" : StrCat("the end was reported ", ends.load(), " times");
          }));
  job.ExpectSurvivorsWell();
}

// Promise (gpu.md): after an error the job can be restarted, in the same processes.
TEST_P(DeviceFaultsTest, TheSurvivorsMakeANewJob) {
  const std::string second = testing::FreeLocalAddress();
  const JobShape shape = GetParam();
  const Part first = OnDevices([victim = last()](OnHostMemory& rank) -> std::string {
    std::thread killer;
    if (rank.rank() == victim) killer = After(std::chrono::milliseconds(20), [] { testing::DieNow(); });
    const Status status = ReduceUntilError(rank, 100'000);
    return status.code() == StatusCode::kUnavailable ? "" : status.ToString();
  });
  Job job(shape, [&](const ContextOptions& options) -> std::string {
    if (std::string error = PlayPart(options, first); !error.empty()) return error;
    JobShape smaller = shape;
    --smaller.size;
    return PlayPart(JobOptions(smaller, second, options.rank), [](Communicator& c) -> std::string {
      float x = 1;
      const Status status = c.AllReduce("x", ReduceOp::kSum, DType::kFloat32, 1, &x, &x);
      return !status.ok() ? status.ToString() : x == static_cast<float>(c.size()) ? "" : StrCat("x is ", x);
    });
  });
  job.ExpectSurvivorsWell({last()});
}

INSTANTIATE_TEST_SUITE_P(Backends, DeviceStopsTest,
                         ::testing::Values(JobShape{"shm", 3, "", "nccl"}, JobShape{"shm", 3, "", "staged"}),
                         JobShapeName);
INSTANTIATE_TEST_SUITE_P(Backends, DeviceFaultsTest,
                         ::testing::Values(JobShape{"shm", 3, "", "nccl"}, JobShape{"shm", 3, "", "staged"},
                                           JobShape{"gloo", 3, "", "nccl"}),
                         JobShapeName);

}  // namespace
}  // namespace lockstep::device
