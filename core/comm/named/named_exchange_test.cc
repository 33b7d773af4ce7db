#include "core/comm/named/named_exchange.h"

#include <gtest/gtest.h>

#include <future>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/named/test_lane.h"

namespace lockstep {
namespace {

constexpr NamedKind kKinds[] = {NamedKind::kAllReduce, NamedKind::kReduceScatter, NamedKind::kAllGather,
                                NamedKind::kAllToAll, NamedKind::kBroadcast};

class NamedExchangeTest : public ::testing::TestWithParam<JobShape> {};

NamedRequest Of(NamedKind kind, const std::string& name, int64_t rows, int ranks) {
  NamedRequest request = Request(kind, name, {rows, 2});
  if (kind == NamedKind::kAllToAll) request.splits.assign(ranks, rows / ranks);
  return request;
}

NamedWork WithoutMemory(NamedWork work) {
  work.allocate = [](std::span<const int64_t>) -> Result<void*> { return ResourceExhausted("no memory"); };
  return work;
}

// Only this rank gets the error; the others have their results, and the lane continues. It is tested with a single
// tensor and with several packed ones, with shared memory and without.
TEST_P(NamedExchangeTest, IsOnlyAnErrorOfARankThatHasNoMemoryForItsResult) {
  for (const int64_t shared_bytes : {int64_t{1} << 24, int64_t{0}}) {
    RunRanks(
        GetParam(),
        [](NamedLane& lane) {
          for (const NamedKind kind : kKinds) {
            for (const int64_t rows : {int64_t{lane.size()}, int64_t{40'000}}) {
              for (const bool with_prescale : {false, true}) {
                for (const NamedReduction reduction : {NamedReduction::kSum, NamedReduction::kAdasum}) {
                  if (reduction == NamedReduction::kAdasum && kind != NamedKind::kAllReduce) continue;
                  SCOPED_TRACE(StrCat(NamedKindName(kind), " of ", rows, " rows ", NamedReductionName(reduction)));
                  const std::vector<float> in(rows * 2, 1);
                  std::vector<NamedWork> works;
                  std::vector<std::future<Outcome>> futures;
                  for (int i = 0; i < 3; ++i) {
                    NamedRequest request = Of(kind, StrCat("x", i), rows, lane.size());
                    request.reduction = reduction;
                    if (with_prescale) request.prescale = 2;
                    auto [work, future] = WorkOf(request, in);
                    works.push_back(lane.rank() == 1 && i == 1 ? WithoutMemory(std::move(work)) : std::move(work));
                    futures.push_back(std::move(future));
                  }
                  lane.Submit(std::move(works));
                  for (int i = 0; i < 3; ++i) {
                    const Outcome got = futures[i].get();
                    if (lane.rank() == 1 && i == 1) {
                      EXPECT_EQ(got.status, ResourceExhausted("no memory"));
                      continue;
                    }
                    EXPECT_EQ(got.status, OkStatus());
                    const bool reduces = kind == NamedKind::kAllReduce || kind == NamedKind::kReduceScatter;
                    const bool adds = reduces && reduction == NamedReduction::kSum;
                    const auto sum = static_cast<float>(adds ? lane.size() : 1);
                    const float wanted = sum * (reduces && with_prescale ? 2 : 1);
                    const auto values = got.As<float>();
                    EXPECT_FALSE(values.empty());
                    EXPECT_EQ(values, std::vector<float>(values.size(), wanted));
                  }
                }
              }
            }
          }
        },
        {}, [&](ContextOptions& context) { context.shared_bytes_per_rank = shared_bytes; });
  }
}

// If a rank has no memory for the exchange itself, all ranks get the error and continue. (Sanitizers end the process
// instead.)
TEST_P(NamedExchangeTest, TellsAllRanksWhereOneHasNoMemoryToExchangeIn) {
  if (kSanitized) GTEST_SKIP() << "sanitizers refuse to fail an allocation";
  constexpr int64_t kTooMuch = kMostTensorBytes / sizeof(float);
  RunRanks(GetParam(), [](NamedLane& lane) {
    for (const NamedReduction reduction : {NamedReduction::kSum, NamedReduction::kAdasum}) {
      NamedRequest request = Request(NamedKind::kAllReduce, "x", {kTooMuch});
      request.reduction = reduction;
      auto [work, future] = WorkOf(request, kNothing);
      lane.Submit(WithoutMemory(std::move(work)));
      const Status status = future.get().status;
      EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
      EXPECT_TRUE(Contains(status, "'x': no memory to exchange it in")) << status.ToString();
    }
    const std::vector<float> in = {1};
    const std::vector<float> wanted = {static_cast<float>(lane.size())};
    EXPECT_EQ(Ask(lane, Request(NamedKind::kAllReduce, "x", {1}), in).get().As<float>(), wanted);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, NamedExchangeTest, ::testing::ValuesIn(LanesOfSeveral()), JobShapeName);

}  // namespace
}  // namespace lockstep
