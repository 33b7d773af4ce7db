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

#include "core/comm/named_lane.h"
#include "core/comm/test_job.h"

// How tests of named lanes ask for things: a rank is a thread, unless the test needs its death.
namespace lockstep {

// What became of a request.
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

// A work, and a future of what comes of it. `in` has to live until then.
template <typename T>
std::pair<NamedWork, std::future<Outcome>> WorkOf(NamedRequest request, const std::vector<T>& in) {
  auto outcome = std::make_shared<Outcome>();
  auto promise = std::make_shared<std::promise<Outcome>>();
  NamedWork work;
  work.in = in.data();
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
  return {std::move(work), promise->get_future()};
}

template <typename T>
std::future<Outcome> Ask(NamedLane& lane, NamedRequest request, const std::vector<T>& in) {
  auto [work, future] = WorkOf(std::move(request), in);
  lane.Submit(std::move(work));
  return std::move(future);
}

// What needs no tensor.
inline Status Await(NamedLane& lane, NamedRequest request) {
  return Ask(lane, std::move(request), kNothing).get().status;
}

// Several at once.
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

// Members of one group.
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

using LanePart = std::function<void(NamedLane& lane)>;

// Each rank on a thread of its own; the parts may use EXPECT.
inline void RunRanks(int ranks, const LanePart& part, const NamedLaneOptions& options = {}, const Adjust& adjust = {}) {
  const std::string address = testing::FreeLocalAddress();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ContextOptions context = JobOptions({"shm", ranks}, address, rank);
      if (adjust) adjust(context);
      auto lane = NamedLane::Create(context, options);
      ASSERT_TRUE(lane.ok()) << lane.status().ToString();
      part(**lane);
      // Nobody leaves while others need it.
      (void)Await(**lane, Barrier("end of the test"));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A lane of each rank in a process of its own, or what went wrong, which `part` returns as well. Victims are not
// expected to end well.
inline void RunProcesses(int size, const std::function<std::string(std::unique_ptr<NamedLane> lane)>& part,
                         const std::vector<int>& victims = {}) {
  testing::Ranks ranks(size, [&, address = testing::FreeLocalAddress()](int rank, const auto& report) {
    auto lane = NamedLane::Create(JobOptions({"shm", size}, address, rank), {});
    std::string error = lane.ok() ? "" : lane.status().ToString();
    if (lane.ok()) {
      const Status start = Await(**lane, Barrier("start"));
      error = start.ok() ? part(*std::move(lane)) : start.ToString();
    }
    report(error);
    return error.empty() ? 0 : 1;
  });
  const std::vector<testing::Outcome> outcomes = ranks.Wait(kJobDeadline_s, victims);
  for (int rank = 0; rank < size; ++rank) {
    if (std::find(victims.begin(), victims.end(), rank) != victims.end()) continue;
    EXPECT_TRUE(outcomes[rank].ended) << "rank " << rank << " was killed at the deadline";
    EXPECT_EQ(outcomes[rank].exit_code, 0)
        << "rank " << rank << ", signal " << outcomes[rank].signal << ": " << outcomes[rank].report;
  }
}

}  // namespace lockstep
