#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "core/embedding/dynamic_table.h"
#include "core/embedding/optimizer/adam.h"
#include "core/embedding/optimizer/sgd.h"
#include "core/embedding/snapshot.h"
#include "core/testing/parallel.h"

// Tests the promises of a table's options one by one. (dynamic_table_test.cc has them in random mixtures.)

namespace lockstep {
namespace {

constexpr int64_t kDim = 4;

DynamicTableOptions Options() {
  DynamicTableOptions options;
  options.name = "item";
  options.dim = kDim;
  options.initial = {InitialOptions::Kind::kNormal, 0, 1, 3};
  options.default_value = -7;
  return options;
}

std::unique_ptr<DynamicTable> Make(const DynamicTableOptions& options) { return *DynamicTable::Create(options); }

std::vector<int64_t> Range(int64_t begin, int64_t end) {
  std::vector<int64_t> keys(end - begin);
  std::iota(keys.begin(), keys.end(), begin);
  return keys;
}

void See(DynamicTable& table, const std::vector<int64_t>& keys, const StepInfo& step) {
  ASSERT_EQ(table.Resolve(keys, step, nullptr, RunInline).status(), OkStatus());
}

std::vector<float> Read(const DynamicTable& table, const std::vector<int64_t>& keys) {
  std::vector<float> rows(keys.size() * table.options().dim);
  table.Lookup(keys, rows.data(), RunInline);
  return rows;
}

// Returns the initial rows of new keys.
std::vector<float> Initial(const std::vector<int64_t>& keys) {
  const DynamicTableOptions options = Options();
  const InitialValues values(options.initial, options.name);
  std::vector<float> rows(keys.size() * kDim);
  for (size_t i = 0; i < keys.size(); ++i) values.Fill(keys[i], &rows[i * kDim], kDim);
  return rows;
}

std::set<int64_t> KeysOf(const DynamicTable& table) {
  const std::vector<int64_t> keys = table.Export().keys;
  return {keys.begin(), keys.end()};
}

TEST(Evaluation, LeavesNoTrace) {
  const auto table = Make(Options());
  See(*table, {1, 2}, {});
  const std::vector<float> before = Read(*table, {1, 2, 3});
  EXPECT_EQ(Read(*table, {1, 2, 3}), before);
  EXPECT_EQ(table->total_count(), 2);
  // An unseen key reads the default row, regardless of the initial values of its own row.
  EXPECT_EQ(std::vector<float>(before.begin() + 2 * kDim, before.end()), std::vector<float>(kDim, -7));
  See(*table, {3}, {});
  EXPECT_EQ(Read(*table, {3}), Initial({3}));
}

// Candidates have no row yet, and unseen keys get none.
TEST(Evaluation, FindsTheRowsOfAdmittedKeys) {
  DynamicTableOptions options = Options();
  options.admission.min_frequency = 2;
  options.record_frequency = true;
  const auto table = Make(options);
  const std::vector<int64_t> keys = {5, 1, 5, 2};
  const Result<ResolvedKeys> batch = table->Resolve(keys, {}, nullptr, RunInline);
  std::vector<uint32_t> numbers(5);
  table->Find(std::vector<int64_t>{5, 1, 2, 9, 5}, numbers.data(), RunInline);
  const uint32_t row = batch->rows()[0];
  EXPECT_NE(row, kNoRow);
  EXPECT_EQ(numbers, (std::vector<uint32_t>{row, kNoRow, kNoRow, kNoRow, row}));
  EXPECT_EQ(table->candidate_count(), 2);
  std::vector<int64_t> frequencies(2);
  ASSERT_EQ(table->GetFrequency(std::vector<int64_t>{1, 9}, frequencies.data()), OkStatus());
  EXPECT_EQ(frequencies, (std::vector<int64_t>{1, 0})) << "nothing is counted";
}

TEST(Eviction, ByWallClockGoesByTheCallersClock) {
  DynamicTableOptions options = Options();
  options.eviction.seconds_to_live = 60;
  const auto table = Make(options);
  See(*table, Range(0, 10), {1, 1000});
  See(*table, Range(5, 15), {2, 1030});
  EXPECT_EQ(table->Evict({3, 1060}), Range(0, 0));
  EXPECT_EQ(table->Evict({3, 1061}), Range(0, 5));
  EXPECT_EQ(table->Evict({3, 2000}), Range(5, 15));
  EXPECT_EQ(table->total_count(), 0);
}

TEST(Eviction, ByNormTakesSmallRows) {
  DynamicTableOptions options = Options();
  options.eviction.l2_threshold = 2;
  const auto table = Make(options);
  See(*table, Range(0, 100), {});
  const std::vector<float> rows = Read(*table, Range(0, 100));
  std::vector<int64_t> small;
  for (int64_t key = 0; key < 100; ++key) {
    double squares = 0;
    for (int64_t d = 0; d < kDim; ++d) squares += std::pow(rows[key * kDim + d], 2);
    if (squares < 4) small.push_back(key);
  }
  EXPECT_GT(small.size(), 10u);
  EXPECT_EQ(table->Evict({}), small);
}

// Work is bounded: a call examines about keys_per_call keys, and the calls together examine all keys.
TEST(Eviction, GoesThroughTheTableInSteps) {
  DynamicTableOptions options = Options();
  options.eviction.steps_to_live = 0;
  options.eviction.keys_per_call = 100;
  const auto table = Make(options);
  See(*table, Range(0, 2000), {1, 0});
  int calls = 0;
  for (; table->total_count() > 0 && calls < 1000; ++calls) EXPECT_LE(table->Evict({2, 0}).size(), 200u);
  EXPECT_GE(calls, 10);
  EXPECT_LT(calls, 1000);
}

// The budget holds after every call, hot keys stay, and threads decide nothing.
TEST(Eviction, KeepsToTheBudget) {
  for (const auto order : {EvictionOptions::Order::kLru, EvictionOptions::Order::kLfu}) {
    std::set<int64_t> left;
    for (const int threads : {1, 3}) {
      DynamicTableOptions options = Options();
      options.eviction.order = order;
      options.eviction.max_keys = 1000;
      options.eviction.keys_per_call = 500;
      const auto table = Make(options);
      testing::Pool pool(threads);
      for (int64_t step = 0; step < 50; ++step) {
        std::vector<int64_t> keys = Range(0, 200);
        const std::vector<int64_t> fresh = Range(1000 + step * 97, 1000 + step * 97 + 97);
        keys.insert(keys.end(), fresh.begin(), fresh.end());
        std::shuffle(keys.begin(), keys.end(), std::mt19937_64(step));
        ASSERT_EQ(table->Resolve(keys, {step, 0}, nullptr, pool.Get()).status(), OkStatus());
        table->Evict({step, 0});
        ASSERT_LE(table->total_count(), 1000);
      }
      const std::set<int64_t> keys = KeysOf(*table);
      for (const int64_t key : Range(0, 200)) EXPECT_TRUE(keys.contains(key)) << "hot, and gone: " << key;
      EXPECT_GT(keys.size(), 900u);
      if (left.empty()) left = keys;
      EXPECT_EQ(keys, left);
      // Evicted keys make room for new keys.
      EXPECT_LT(table->bytes(), 1300 * (4 * kDim + 9 + 8 + 30) + (64 << 10));
    }
  }
  DynamicTableOptions options = Options();
  options.eviction.max_bytes = 100 * (4 * kDim + 9 + 8 + 24);
  const auto table = Make(options);
  See(*table, Range(0, 500), {});
  EXPECT_EQ(table->Evict({}).size(), 400u);
}

// In a full table by LFU, formerly frequent keys make room for keys that are frequent now.
TEST(Eviction, ByFrequencyLearnsNewKeys) {
  DynamicTableOptions options = Options();
  options.eviction.order = EvictionOptions::Order::kLfu;
  options.eviction.max_keys = 10;
  const auto table = Make(options);
  int64_t step = 0;
  const auto train = [&](const std::vector<int64_t>& keys) {
    See(*table, keys, {++step, 0});
    table->Evict({step, 0});
    EXPECT_LE(table->total_count(), 10);
  };
  for (int i = 0; i < 100; ++i) train(Range(0, 10));
  // Three groups in turn, and three former keys that stay frequent.
  for (int i = 0; i < 200; ++i) {
    std::vector<int64_t> keys = Range(100 + 2 * (i % 3), 102 + 2 * (i % 3));
    if (i % 2 == 0) keys.insert(keys.end(), {0, 1, 2});
    train(keys);
  }
  const std::set<int64_t> keys = KeysOf(*table);
  for (const int64_t key : {0, 1, 2, 100, 101, 102, 103, 104, 105}) EXPECT_TRUE(keys.contains(key)) << key;
  // Without evictions, counts are exact.
  std::vector<int64_t> before(1), after(1);
  ASSERT_EQ(table->GetFrequency(std::vector<int64_t>{0}, before.data()), OkStatus());
  for (int i = 0; i < 50; ++i) train({0});
  ASSERT_EQ(table->GetFrequency(std::vector<int64_t>{0}, after.data()), OkStatus());
  EXPECT_EQ(after[0], before[0] + 50);
}

// The rows of a batch in use stay, regardless of the budget. If such a key is removed, no other key gets its row.
TEST(Eviction, LeavesRowsInUse) {
  DynamicTableOptions options = Options();
  options.eviction.max_keys = 0;
  const auto table = Make(options);
  {
    Result<ResolvedKeys> batch = table->Resolve(Range(0, 10), {}, nullptr, RunInline);
    See(*table, Range(10, 20), {});
    EXPECT_EQ(table->Evict({}), Range(10, 20));
    EXPECT_EQ(table->Remove(Range(0, 5)), 5);
    See(*table, Range(100, 150), {});
    const std::vector<float> others = Read(*table, Range(100, 150));
    const std::vector<float> gradients(10 * kDim, 1);
    ASSERT_EQ(table->Update(*batch, gradients.data(), *SgdOptions{1}.Rule(DType::kFloat32), {}, 0, RunInline),
              OkStatus());
    EXPECT_EQ(Read(*table, Range(100, 150)), others);
    EXPECT_EQ(table->Evict({}), Range(100, 150));
  }
  EXPECT_EQ(table->Evict({}), Range(5, 10));
}

// Evicted rows are returned as they were, also where a batch in use keeps others, and other keys get their memory.
TEST(Eviction, ReturnsTheLastRows) {
  for (const auto order : {EvictionOptions::Order::kLru, EvictionOptions::Order::kLfu}) {
    DynamicTableOptions options = Options();
    options.eviction.order = order;
    options.eviction.max_keys = 12;
    options.record_seconds = true;
    const auto table = Make(options);
    ASSERT_EQ(*table->AddSlot("m", 2), 0);
    std::vector<float> trained;
    {
      const Result<ResolvedKeys> batch = table->Resolve(Range(0, 20), {1, 1000}, nullptr, RunInline);
      const std::vector<float> gradients(20 * kDim, 1);
      ASSERT_EQ(table->Update(*batch, gradients.data(), *SgdOptions{1}.Rule(DType::kFloat32), {}, 0, RunInline),
                OkStatus());
      trained = Read(*table, Range(0, 20));
      TableRows none;
      EXPECT_EQ(table->Evict({}, &none), Range(0, 0)) << "all are in use";
      EXPECT_EQ(none.size(), 0);
    }
    See(*table, Range(8, 20), {2, 1001});
    TableRows evicted;
    EXPECT_EQ(table->Evict({2, 1001}, &evicted), Range(0, 8));
    See(*table, Range(100, 108), {3, 1002});
    ASSERT_EQ(evicted.size(), 8);
    EXPECT_EQ(std::set<int64_t>(evicted.keys.begin(), evicted.keys.end()).size(), 8u);
    EXPECT_EQ(evicted.slots[0], std::vector<float>(8 * kDim, 2));
    EXPECT_EQ(evicted.seconds, std::vector<uint32_t>(8, 1000));
    const auto* rows = reinterpret_cast<const float*>(evicted.rows.data());
    for (int64_t i = 0; i < 8 * kDim; ++i) EXPECT_EQ(rows[i], trained[evicted.keys[i / kDim] * kDim + i % kDim]);
  }
}

// Candidates that are evicted have no rows.
TEST(Eviction, ReturnsNoRowsOfCandidates) {
  DynamicTableOptions options = Options();
  options.admission.min_frequency = 2;
  options.eviction.steps_to_live = 0;
  const auto table = Make(options);
  See(*table, {1, 2, 2}, {1, 0});
  TableRows evicted;
  EXPECT_EQ(table->Evict({2, 0}, &evicted), Range(1, 3));
  EXPECT_EQ(evicted.keys, Range(2, 3));
}

TEST(Seconds, AreThoseInWhichKeysWereSeenLast) {
  DynamicTableOptions options = Options();
  options.admission.min_frequency = 2;
  options.record_seconds = true;
  const auto table = Make(options), restored = Make(options);
  See(*table, {1, 1, 2}, {1, 1000});
  See(*table, {1, 3}, {2, 4000000000});
  {
    const auto snapshot = *Snapshot::Begin(*table, Snapshot::Kind::kFull);
    SnapshotPart part;
    while (snapshot->Next(10, &part)) {
      ASSERT_EQ(restored->Restore(part.rows, {.admitted = part.admitted, .now = {7, 7000}}), OkStatus());
    }
  }
  for (const DynamicTable* each : {table.get(), restored.get()}) {
    std::vector<int64_t> seconds(4);
    ASSERT_EQ(each->GetSeconds(std::vector<int64_t>{1, 2, 3, 4}, seconds.data()), OkStatus());
    EXPECT_EQ(seconds, (std::vector<int64_t>{4000000000, 1000, 4000000000, 0}));
  }
  // Rows without a time are as old as their restore.
  TableRows part;
  part.keys = {2};
  part.rows.resize(kDim * 4);
  int64_t seconds = 0;
  ASSERT_EQ(table->Restore(part, {.now = {9, 9000}}), OkStatus());
  ASSERT_EQ(table->GetSeconds({{2}}, &seconds), OkStatus());
  EXPECT_EQ(seconds, 9000);
}

TEST(Admission, ByBloomFilterAdmitsWhatIsSeenOftenEnough) {
  DynamicTableOptions options = Options();
  options.admission = {.min_frequency = 3, .bloom_keys = 10000, .bloom_false_positives = 0.001};
  options.record_frequency = true;
  options.eviction.steps_to_live = 5;
  const auto table = Make(options);
  const std::vector<int64_t> keys = Range(0, 500);
  const std::vector<float> defaults(500 * kDim, -7);
  for (int time = 0; time < 2; ++time) {
    std::vector<float> rows(500 * kDim);
    const Result<ResolvedKeys> batch = table->Resolve(keys, {}, rows.data(), RunInline);
    EXPECT_EQ(rows, defaults);
    EXPECT_EQ(batch->rows()[0], kNoRow);
    // Gradients of keys that are not admitted are dropped.
    ASSERT_EQ(table->Update(*batch, rows.data(), *SgdOptions{1}.Rule(DType::kFloat32), {}, 0, RunInline), OkStatus());
  }
  EXPECT_EQ(table->total_count(), 0);
  EXPECT_EQ(table->candidate_count(), 0);
  // The filter is part of a snapshot, and can be restored on any number of workers.
  const auto restored = Make(options);
  {
    const auto snapshot = *Snapshot::Begin(*table, Snapshot::Kind::kFull);
    ASSERT_EQ(restored->RestoreFilter(snapshot->filter()), OkStatus());
  }
  for (DynamicTable* each : {table.get(), restored.get()}) {
    std::vector<float> rows(500 * kDim);
    ASSERT_EQ(each->Resolve(keys, {100, 0}, rows.data(), RunInline).status(), OkStatus());
    EXPECT_EQ(each->total_count(), 500);
    EXPECT_EQ(rows, Initial(keys)) << "new rows begin as ever";
    std::vector<int64_t> frequencies(500);
    ASSERT_EQ(each->GetFrequency(keys, frequencies.data()), OkStatus());
    EXPECT_EQ(frequencies, std::vector<int64_t>(500, 3)) << "they count from the first time on";
    EXPECT_TRUE(each->Evict({100 + 5, 0}).empty());
    EXPECT_EQ(each->Evict({100 + 6, 0}).size(), 500u);
  }
}

// Ids without their duplicates count as often as they were seen.
TEST(Admission, CountsAsOftenAsItIsTold) {
  DynamicTableOptions options = Options();
  options.admission.min_frequency = 3;
  options.record_frequency = true;
  const auto table = Make(options);
  const std::vector<int64_t> keys = {1, 2};
  const std::vector<int32_t> counts = {3, 2};
  ASSERT_EQ(table->Resolve(keys, {}, nullptr, RunInline, counts).status(), OkStatus());
  EXPECT_EQ(KeysOf(*table), std::set<int64_t>{1});
  int64_t frequencies[2];
  ASSERT_EQ(table->GetFrequency(keys, frequencies), OkStatus());
  EXPECT_EQ(frequencies[0], 3);
  EXPECT_EQ(frequencies[1], 2);
}

// 16-bit rows return the stored values, and are rounded equally in every run.
TEST(RowTypes, OfSixteenBits) {
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    std::vector<float> first;
    for (const int threads : {1, 3}) {
      DynamicTableOptions options = Options();
      options.row_type = type;
      const auto table = Make(options);
      testing::Pool pool(threads);
      const std::vector<int64_t> keys = Range(-2000, 2000);
      std::vector<float> rows(keys.size() * kDim), began;
      const std::vector<float> exact = Initial(keys);
      for (int64_t step = 0; step < 3; ++step) {
        const Result<ResolvedKeys> batch = table->Resolve(keys, {step, 0}, rows.data(), pool.Get());
        if (step == 0) {
          began = Read(*table, keys);
          EXPECT_EQ(rows, began);
          for (size_t i = 0; i < rows.size(); ++i) ASSERT_NEAR(rows[i], exact[i], std::abs(exact[i]) * 0.004 + 1e-7);
        }
        const std::vector<float> gradients(rows.size(), 1e-4f);
        ASSERT_EQ(table->Update(*batch, gradients.data(), *SgdOptions{1}.Rule(type), {}, step, pool.Get()), OkStatus());
        EXPECT_EQ(
            table->Update(*batch, gradients.data(), *SgdOptions{1}.Rule(DType::kFloat32), {}, step, pool.Get()).code(),
            StatusCode::kInvalidArgument);
      }
      if (first.empty()) first = Read(*table, keys);
      EXPECT_EQ(Read(*table, keys), first);
      EXPECT_NE(first, began);
    }
  }
}

// TensorFlow's Adam for sparse gradients: a dynamic table behaves like a static table of all keys, restricted to the
// keys that were seen.
TEST(Updates, OfAllRowsAreAStaticTables) {
  constexpr int64_t kKeys = 60;
  const auto table = Make(Options());
  const std::vector<int> slots = {*table->AddSlot("m", 0), *table->AddSlot("v", 0)};
  std::vector<float> weights = Initial(Range(0, kKeys)), m(weights.size(), 0), v(weights.size(), 0);
  for (int step = 1; step < 6; ++step) {
    const UpdateRule rule = *AdamOptions{.learning_rate = 0.1f,
                                         .beta1_power = std::pow(0.9f, static_cast<float>(step)),
                                         .beta2_power = std::pow(0.999f, static_cast<float>(step))}
                                 .Rule(DType::kFloat32);
    std::mt19937_64 random(step);
    std::vector<int64_t> keys(20);
    for (int64_t& key : keys) key = static_cast<int64_t>(random() % kKeys);
    std::vector<float> gradients(keys.size() * kDim), dense(weights.size(), 0);
    for (size_t i = 0; i < gradients.size(); ++i) {
      gradients[i] = static_cast<float>(random() % 100) / 50 - 1;
      dense[keys[i / kDim] * kDim + i % kDim] += gradients[i];
    }
    const Result<ResolvedKeys> batch = table->Resolve(keys, {step, 0}, nullptr, RunInline);
    ASSERT_EQ(table->Update(*batch, gradients.data(), rule, slots, step, RunInline, /*all_rows=*/true), OkStatus());
    std::vector<uint32_t> numbers(kKeys);
    std::iota(numbers.begin(), numbers.end(), 0);
    const UpdateTarget target{RowView::Contiguous(weights.data(), kDim * 4),
                              {RowView::Contiguous(m.data(), kDim * 4), RowView::Contiguous(v.data(), kDim * 4)},
                              kDim};
    ApplyDistinctUpdate(target, rule, numbers, dense.data(), RunInline);
    std::vector<float> expected = weights;
    for (int64_t key = 0; key < kKeys; ++key) {
      if (!KeysOf(*table).contains(key)) std::fill_n(&expected[key * kDim], kDim, -7);
    }
    ASSERT_EQ(Read(*table, Range(0, kKeys)), expected) << step;
  }
}

TEST(Snapshots, KnowWhatTheyCanBuildOn) {
  DynamicTableOptions options = Options();
  EXPECT_EQ(Snapshot::Begin(*Make(options), Snapshot::Kind::kChanges).status().code(), StatusCode::kFailedPrecondition);
  options.track_changes = true;
  const auto table = Make(options);
  See(*table, Range(0, 10), {});
  const auto read = [&](Snapshot::Kind kind, bool commit) {
    const auto snapshot = *Snapshot::Begin(*table, kind);
    EXPECT_EQ(Snapshot::Begin(*table, kind).status().code(), StatusCode::kFailedPrecondition) << "one at a time";
    EXPECT_EQ(snapshot->Commit().code(), StatusCode::kFailedPrecondition) << "not read";
    int64_t rows = 0;
    SnapshotPart part;
    while (snapshot->Next(3, &part)) rows += part.rows.size();
    if (commit) {
      EXPECT_EQ(snapshot->Commit(), OkStatus());
    }
    return rows;
  };
  EXPECT_EQ(read(Snapshot::Kind::kChanges, true), 10) << "since the table was made";
  See(*table, {3}, {});
  EXPECT_EQ(read(Snapshot::Kind::kChanges, false), 1);
  // That snapshot was lost: an incremental one would lack its changes.
  EXPECT_EQ(Snapshot::Begin(*table, Snapshot::Kind::kChanges).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(read(Snapshot::Kind::kFull, true), 10);
  EXPECT_EQ(read(Snapshot::Kind::kChanges, true), 0);
}

TEST(DynamicTable, ArgumentsAreChecked) {
  const auto code = [](auto&& change) {
    DynamicTableOptions options = Options();
    change(options);
    return DynamicTable::Create(options).status().code();
  };
  EXPECT_EQ(code([](auto& options) { options.dim = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& options) { options.row_type = DType::kInt32; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& options) { options.eviction.max_keys = -1; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& options) { options.admission.min_frequency = -1; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& options) { options.initial.b = -1; }), StatusCode::kInvalidArgument);

  const auto table = Make(Options());
  EXPECT_EQ(*table->AddSlot("m", 0), 0);
  EXPECT_EQ(*table->AddSlot("m", 0), 0);
  EXPECT_EQ(table->AddSlot("m", 1).status().code(), StatusCode::kFailedPrecondition);
  int64_t count;
  EXPECT_EQ(table->GetFrequency({{1}}, &count).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(table->GetVersion({{1}}, &count).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(table->GetSeconds({{1}}, &count).code(), StatusCode::kFailedPrecondition);
  const ResolvedKeys none;
  const float gradient = 0;
  const UpdateRule adam = *AdamOptions{}.Rule(DType::kFloat32);
  EXPECT_EQ(table->Update(none, &gradient, adam, {{0}}, 0, RunInline).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(table->Update(none, &gradient, adam, {{0, 1}}, 0, RunInline).code(), StatusCode::kInvalidArgument);
  TableRows part;
  part.keys = {1};
  EXPECT_EQ(table->Restore(part, {}).code(), StatusCode::kInvalidArgument) << "no rows";
  part.rows.resize(kDim * 4);
  part.slots.resize(2, std::vector<float>(kDim));
  EXPECT_EQ(table->Restore(part, {}).code(), StatusCode::kInvalidArgument) << "more slots than there are";
  part.slots.resize(1);
  EXPECT_EQ(table->Restore(part, {}), OkStatus());
  part.versions.resize(2);
  EXPECT_EQ(table->Restore(part, {}).code(), StatusCode::kInvalidArgument) << "versions of other keys";
}

}  // namespace
}  // namespace lockstep
