// Measures a lookup without the exchange, in time per id: dropping duplicates and sorting by owner, summing gradients,
// and the two ways of a pooled lookup (core/embedding/pooling.h). Ids are drawn from a million, by a zipf law as in
// recommenders, or uniformly.
#include <benchmark/benchmark.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/embedding/pooling.h"
#include "core/sharding/lookup.h"
#include "core/testing/thread_communicator.h"

namespace lockstep {
namespace {

constexpr int64_t kRows = 1'000'000;
constexpr int kRanks = 4;

std::vector<int64_t> Ids(int64_t count, bool zipf, int64_t rows = kRows) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<int64_t> ids(count);
  for (int64_t& id : ids) {
    // An approximation of the inverse of zipf's distribution function with exponent 1: log-uniform ranks.
    id = zipf ? static_cast<int64_t>(std::pow(static_cast<double>(rows), uniform(random))) - 1 : random() % rows;
  }
  return ids;
}

// For 4 ranks, on one thread, without communication. The hash table has 16 KiB for 2048 ids and 512 KiB for 65536.
void BM_PlanRoute(benchmark::State& state) {
  const int64_t rows = state.range(2);
  const std::vector<int64_t> ids = Ids(state.range(0), state.range(1) != 0, rows);
  std::vector<int32_t> inverse(ids.size());
  const LookupIds lookup{"table", rows, DType::kInt64, ids.data(), state.range(0), inverse.data()};
  int64_t distinct = 0;
  for (auto _ : state) {
    const Result<RoutePlan> plan = PlanRoute(kRanks, {&lookup, 1});
    distinct = static_cast<int64_t>(plan->local_rows[0].size());
  }
  state.counters["distinct"] = static_cast<double>(distinct);
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_PlanRoute)
    ->ArgNames({"ids", "zipf", "rows"})
    ->ArgsProduct({{2048, 20480, 65536}, {0, 1}, {1000, 200'000, kRows}});

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

// The ids of 2048 examples, each with 1 to 19, and a row for each distinct one.
struct PooledBatch {
  explicit PooledBatch(int64_t dim) {
    std::mt19937_64 random(1);
    while (splits.size() <= 2048) splits.push_back(splits.back() + 1 + static_cast<int64_t>(random() % 19));
    const std::vector<int64_t> ids = Ids(splits.back(), true);
    places.resize(ids.size());
    const LookupIds lookup{"table", kRows, DType::kInt64, ids.data(), splits.back(), places.data()};
    pooling.rows = static_cast<int64_t>(PlanRoute(kRanks, {&lookup, 1})->local_rows[0].size());
    pooling.dim = dim;
    pooling.splits = splits;
    pooling.places = places;
    rows.assign(pooling.rows * dim, 0.5f);
    examples.assign(pooling.examples() * dim, 0.5f);
  }

  std::vector<int64_t> splits = {0};
  std::vector<int32_t> places;
  std::vector<float> rows, examples;
  Pooling pooling;
};

void BM_PoolRows(benchmark::State& state) {
  PooledBatch batch(state.range(0));
  const PoolRowsTask task{batch.pooling, batch.rows.data(), batch.examples.data()};
  for (auto _ : state) PoolRows({&task, 1}, RunInline);
  state.SetItemsProcessed(state.iterations() * batch.pooling.ids());
}
BENCHMARK(BM_PoolRows)->ArgName("dim")->Arg(16)->Arg(64);

void BM_PoolGradients(benchmark::State& state) {
  PooledBatch batch(state.range(0));
  const PoolGradientsTask task{batch.pooling, batch.examples.data(), batch.rows.data()};
  for (auto _ : state) PoolGradients({&task, 1}, RunInline);
  state.SetItemsProcessed(state.iterations() * batch.pooling.ids());
}
BENCHMARK(BM_PoolGradients)->ArgName("dim")->Arg(16)->Arg(64);

}  // namespace
}  // namespace lockstep

BENCHMARK_MAIN();
