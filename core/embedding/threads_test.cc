#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "core/embedding/dynamic_table.h"
#include "core/embedding/optimizer/sgd.h"
#include "core/embedding/snapshot.h"

// A table that many threads use at once; the thread sanitizer checks it.

namespace lockstep {
namespace {

constexpr int64_t kDim = 8;

struct Setup {
  const char* name;
  int64_t min_frequency;
  bool bloom;
};

class ThreadsTest : public ::testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    DynamicTableOptions options;
    options.name = "user";
    options.dim = kDim;
    options.initial = {InitialOptions::Kind::kConstant, 1, 0, 0};
    options.default_value = 1;
    options.admission.min_frequency = GetParam().min_frequency;
    if (GetParam().bloom) {
      options.admission.bloom_keys = 100000;
      options.admission.bloom_false_positives = 0.1;
    }
    options.eviction.steps_to_live = 3;
    options.eviction.max_keys = 3000;
    options.eviction.keys_per_call = 2000;
    options.record_frequency = options.record_version = options.track_changes = true;
    table_ = *DynamicTable::Create(options);
    ASSERT_TRUE(table_->AddSlot("slot", 5).ok());
  }

  // A row is consistent: updates add the same number to all of its elements.
  static void ExpectWhole(const float* rows, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t d = 1; d < kDim; ++d) ASSERT_EQ(rows[i * kDim + d], rows[i * kDim]);
    }
  }

  static std::vector<int64_t> Keys(std::mt19937_64& random) {
    std::vector<int64_t> keys(500);
    for (int64_t& key : keys) key = static_cast<int64_t>(random() % (1 + random() % 8000));
    return keys;
  }

  void Train(int seed, int steps) {
    std::mt19937_64 random(seed);
    std::vector<float> rows(500 * kDim), gradients(500 * kDim);
    for (int step = 0; step < steps; ++step) {
      const std::vector<int64_t> keys = Keys(random);
      Result<ResolvedKeys> batch = table_->Resolve(keys, {++step_, 0}, rows.data(), RunInline);
      ASSERT_EQ(batch.status(), OkStatus());
      ExpectWhole(rows.data(), 500);
      for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = static_cast<float>(keys[i / kDim] % 5);
      ASSERT_EQ(table_->Update(*batch, gradients.data(), *SgdOptions{1}.Rule(DType::kFloat32), {}, step, RunInline),
                OkStatus());
    }
  }

  std::unique_ptr<DynamicTable> table_;
  std::atomic<int64_t> step_{0};
};

TEST_P(ThreadsTest, EverythingAtOnce) {
  const int steps = LOCKSTEP_SANITIZED ? 60 : 300;
  std::atomic<int> training = 2;
  std::vector<std::thread> threads;
  for (int seed = 0; seed < 2; ++seed) {
    threads.emplace_back([&, seed] {
      Train(seed, steps);
      --training;
    });
  }
  threads.emplace_back([&] {
    std::mt19937_64 random(7);
    std::vector<float> rows(500 * kDim);
    std::vector<int64_t> counts(500);
    while (training > 0) {
      const std::vector<int64_t> keys = Keys(random);
      table_->Lookup(keys, rows.data(), RunInline);
      ExpectWhole(rows.data(), 500);
      ASSERT_EQ(table_->GetFrequency(keys, counts.data()), OkStatus());
      ASSERT_EQ(table_->GetVersion(keys, counts.data()), OkStatus());
    }
  });
  threads.emplace_back([&] {
    std::mt19937_64 random(8);
    while (training > 0) {
      table_->Evict({step_, 0});
      table_->Remove(std::vector<int64_t>{static_cast<int64_t>(random() % 8000)});
    }
  });
  threads.emplace_back([&] {
    for (int i = 0; training > 0; ++i) {
      const auto snapshot = *Snapshot::Begin(*table_, i % 3 == 0 ? Snapshot::Kind::kFull : Snapshot::Kind::kChanges);
      int64_t rows = 0, candidates = 0;
      SnapshotPart part;
      while (snapshot->Next(700, &part)) {
        (part.admitted ? rows : candidates) += part.rows.size();
        ExpectWhole(reinterpret_cast<const float*>(part.rows.rows.data()), part.admitted ? part.rows.size() : 0);
      }
      if (i % 3 == 0) {
        ASSERT_EQ(rows, snapshot->admitted_count());
        ASSERT_EQ(candidates, snapshot->candidate_count());
      }
      ASSERT_EQ(snapshot->Commit(), OkStatus());
      std::this_thread::yield();
    }
  });
  for (std::thread& thread : threads) thread.join();
  // Without a living batch the budget holds.
  table_->Evict({step_, 0});
  EXPECT_LE(table_->total_count(), 3000);
  EXPECT_EQ(table_->Export().size(), table_->total_count());
}

INSTANTIATE_TEST_SUITE_P(Filters, ThreadsTest,
                         ::testing::Values(Setup{"none", 0, false}, Setup{"exact", 2, false}, Setup{"bloom", 2, true}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep
