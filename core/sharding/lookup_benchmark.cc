// Measures a lookup without the exchange, in time per id: dropping duplicates and sorting by owner, placing rows, and
// summing gradients. Ids are drawn from a million, by a zipf law as in recommenders, or uniformly.
#include <benchmark/benchmark.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/sharding/lookup.h"
#include "core/testing/thread_communicator.h"

namespace lockstep {
namespace {

constexpr int64_t kRows = 1'000'000;
constexpr int kRanks = 4;

std::vector<int64_t> Ids(int64_t count, bool zipf) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<int64_t> ids(count);
  for (int64_t& id : ids) {
    // An approximation of the inverse of zipf's distribution function with exponent 1: log-uniform ranks.
    id = zipf ? static_cast<int64_t>(std::pow(double{kRows}, uniform(random))) - 1 : random() % kRows;
  }
  return ids;
}

// For 4 ranks, on one thread, without communication. The hash table has 64 KiB for 2048 ids and 2 MiB for 65536.
void BM_PlanRoute(benchmark::State& state) {
  const std::vector<int64_t> ids = Ids(state.range(0), state.range(1) != 0);
  std::vector<int32_t> inverse(ids.size());
  const LookupIds lookup{"table", kRows, DType::kInt64, ids.data(), state.range(0), inverse.data()};
  int64_t distinct = 0;
  for (auto _ : state) {
    const Result<RoutePlan> plan = PlanRoute(kRanks, {&lookup, 1});
    distinct = static_cast<int64_t>(plan->local_rows[0].size());
  }
  state.counters["distinct"] = static_cast<double>(distinct);
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_PlanRoute)->ArgNames({"ids", "zipf"})->ArgsProduct({{2048, 65536}, {0, 1}});

// Rows of 16 floats. The communicator gives only its size; it has no shared memory, so sums lie in private memory.
void BM_SumGradients(benchmark::State& state) {
  constexpr int64_t kWidth = 16;
  const std::vector<int64_t> ids = Ids(state.range(0), state.range(1) != 0);
  std::vector<int32_t> inverse(ids.size());
  const LookupIds lookup{"table", kRows, DType::kInt64, ids.data(), state.range(0), inverse.data()};
  const Result<RoutePlan> plan = PlanRoute(kRanks, {&lookup, 1});
  const std::vector<float> gradient(ids.size() * kWidth, 0.5f);
  testing::ThreadCommunicator communicator(0, std::make_shared<testing::ThreadBoard>(kRanks));
  const std::vector<int64_t> none(kRanks, 0);
  const LookupGradient one{plan->send[0],   none,           DType::kFloat32, kWidth,
                           gradient.data(), inverse.data(), state.range(0),  nullptr};
  for (auto _ : state) benchmark::DoNotOptimize(SumGradients(communicator, {&one, 1}));
  state.SetItemsProcessed(state.iterations() * state.range(0));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(gradient.size() * sizeof(float)));
}
BENCHMARK(BM_SumGradients)->ArgNames({"ids", "zipf"})->ArgsProduct({{2048, 65536}, {0, 1}});

}  // namespace
}  // namespace lockstep

BENCHMARK_MAIN();
