#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/comm/named/named_lane.h"
#include "core/testing/job.h"

// How tests of named lanes make requests: a rank is a thread, unless the test needs its death.
namespace lockstep {

// Where the tensors of tests are. A program sets it before main; by default they are in the host's memory.
struct TestedTensors {
  // Moves the tensor of a work, and its result, to and from a device.
  std::function<void(NamedWork& work)> place;
  // Gives a rank's lane what it needs for that.
  std::function<void(const ContextOptions& context, NamedLaneOptions& options)> prepare;
  // Ends what the devices keep running in this process: the thread sanitizer allows no forks beside threads and fibers.
  std::function<void()> before_forks;
};
inline TestedTensors& TensorsOfThisProgram() {
  static TestedTensors tensors;
  return tensors;
}

inline Result<std::unique_ptr<NamedLane>> CreateLane(const ContextOptions& context, NamedLaneOptions options = {}) {
  if (TensorsOfThisProgram().prepare != nullptr) TensorsOfThisProgram().prepare(context, options);
  return NamedLane::Create(context, options);
}

// The result of a request.
struct Outcome {
  Status status;
  std::vector<int64_t> shape;
  std::vector<char> bytes;
  NamedWork::Outcome more;

  template <typename T>
  std::vector<T> As() const {
    const auto* data = reinterpret_cast<const T*>(bytes.data());
    return {data, data + bytes.size() / sizeof(T)};
  }
};

inline NamedRequest Request(NamedKind kind, const std::string& name, std::vector<int64_t> shape = {}) {
  NamedRequest request;
  request.kind = kind;
  request.name = name;
  request.shape = std::move(shape);
  return request;
}

inline NamedRequest Barrier(const std::string& name) { return Request(NamedKind::kBarrier, name); }
inline NamedRequest Join() { return Request(NamedKind::kJoin, ""); }

inline const std::vector<float> kNothing;

// A work, and a future of its outcome. `in` has to live until then. is_placed: the tensor is where the program's are.
inline std::pair<NamedWork, std::future<Outcome>> WorkOf(NamedRequest request, const void* in, bool is_placed = true) {
  auto outcome = std::make_shared<Outcome>();
  auto promise = std::make_shared<std::promise<Outcome>>();
  NamedWork work;
  work.in = in;
  work.allocate = [outcome, size = DTypeSize(request.dtype)](std::span<const int64_t> shape) -> Result<void*> {
    outcome->shape.assign(shape.begin(), shape.end());
    outcome->bytes.resize(std::accumulate(shape.begin(), shape.end(), size, std::multiplies<>()));
    return static_cast<void*>(outcome->bytes.data());
  };
  work.done = [outcome, promise](const Status& status, const NamedWork::Outcome& more) {
    outcome->status = status;
    outcome->more = more;
    promise->set_value(std::move(*outcome));
  };
  work.request = std::move(request);
  const auto& place = TensorsOfThisProgram().place;
  const bool is_there = in != nullptr || work.request.Elements() == 0;
  if (is_placed && place != nullptr && is_there && HasData(work.request.kind)) place(work);
  return {std::move(work), promise->get_future()};
}

template <typename T>
std::pair<NamedWork, std::future<Outcome>> WorkOf(NamedRequest request, const std::vector<T>& in) {
  return WorkOf(std::move(request), static_cast<const void*>(in.data()));
}

template <typename T>
std::future<Outcome> Ask(NamedLane& lane, NamedRequest request, const std::vector<T>& in) {
  auto [work, future] = WorkOf(std::move(request), in);
  lane.Submit(std::move(work));
  return std::move(future);
}

// For requests without a tensor.
inline Status Await(NamedLane& lane, NamedRequest request) {
  return Ask(lane, std::move(request), kNothing).get().status;
}

// Several requests at once.
template <typename T>
std::vector<std::future<Outcome>> AskAll(NamedLane& lane, const std::vector<NamedRequest>& requests,
                                         const std::vector<T>& in) {
  std::vector<NamedWork> works;
  std::vector<std::future<Outcome>> futures;
  for (const NamedRequest& request : requests) {
    auto [work, future] = WorkOf(request, in);
    works.push_back(std::move(work));
    futures.push_back(std::move(future));
  }
  lane.Submit(std::move(works));
  return futures;
}

// The members of one group.
inline std::vector<NamedRequest> Group(const std::string& group, std::vector<NamedRequest> members) {
  for (NamedRequest& member : members) {
    member.group = group;
    member.group_size = static_cast<uint32_t>(members.size());
  }
  return members;
}

inline bool Contains(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

// The jobs with which tests of lanes run: ranks that share memory, ranks that share none, and both. Pairs are for tests
// in which two ranks have different parts.
inline std::vector<JobShape> LaneShapes() {
  return Tested({{"shm", 1}, {"shm", 2}, {"shm", 4}, {"auto", 2, "ab"}, {"auto", 4, "aabb"}, {"auto", 5, "abacb"}});
}
inline std::vector<JobShape> LanePairs() { return Tested({{"shm", 2}, {"auto", 2, "ab"}}); }
inline std::vector<JobShape> LanesOfSeveral() {
  return Tested({{"shm", 2}, {"shm", 3}, {"auto", 2, "ab"}, {"auto", 4, "aabb"}});
}

// To be called first by tests whose ranks tell each other something through the memory of their process.
#define LOCKSTEP_SKIP_WHERE_RANKS_HAVE_NO_MEMORY_IN_COMMON() \
  if (testing::Site::OfThisProcess()) GTEST_SKIP() << "its ranks tell each other something in memory"

// Each rank that runs here, on its own thread, with the options with which it joins.
inline void RunThreads(const JobShape& shape, const std::function<void(const ContextOptions& options)>& rank) {
  const std::string address = testing::NextRendezvousAddress();
  std::vector<std::thread> threads;
  for (const int here : shape.RanksHere()) {
    threads.emplace_back([&, here] { rank(JobOptions(shape, address, here)); });
  }
  for (std::thread& thread : threads) thread.join();
}

using LanePart = std::function<void(NamedLane& lane)>;

// A lane for each rank, each on its own thread; the parts may use EXPECT.
inline void RunRanks(const JobShape& shape, const LanePart& part, const NamedLaneOptions& options = {},
                     const Adjust& adjust = {}) {
  RunThreads(shape, [&](ContextOptions context) {
    if (adjust) adjust(context);
    auto lane = CreateLane(context, options);
    ASSERT_TRUE(lane.ok()) << lane.status().ToString();
    part(**lane);
    // No rank leaves while others need it.
    (void)Await(**lane, Barrier("end of the test"));
  });
}

// A lane for each rank, each in its own process. `part` returns an error text or "". Victims are not expected to end
// well.
inline void RunProcesses(const JobShape& shape, const std::function<std::string(std::unique_ptr<NamedLane> lane)>& part,
                         const std::vector<int>& victims = {}, const Adjust& adjust = {}) {
  if (TensorsOfThisProgram().before_forks != nullptr) TensorsOfThisProgram().before_forks();
  Job(shape, [&](ContextOptions options) {
    if (adjust) adjust(options);
    auto lane = CreateLane(options);
    if (!lane.ok()) return lane.status().ToString();
    const Status start = Await(**lane, Barrier("start"));
    return start.ok() ? part(*std::move(lane)) : start.ToString();
  }).ExpectSurvivorsWell(victims);
}

}  // namespace lockstep
