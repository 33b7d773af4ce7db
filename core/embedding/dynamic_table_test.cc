#include "core/embedding/dynamic_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <random>

#include "core/embedding/optimizer/adagrad.h"
#include "core/embedding/snapshot.h"
#include "core/testing/oracle.h"
#include "core/testing/parallel.h"

namespace lockstep {
namespace {

constexpr int64_t kDim = 5;

DynamicTableOptions Options() {
  DynamicTableOptions options;
  options.name = "user";
  options.dim = kDim;
  options.initial = {InitialOptions::Kind::kUniform, -1, 1, 3};
  options.default_value = -7;
  return options;
}

std::unique_ptr<DynamicTable> Make(const DynamicTableOptions& options) {
  Result<std::unique_ptr<DynamicTable>> table = DynamicTable::Create(options);
  EXPECT_EQ(table.status(), OkStatus());
  return *std::move(table);
}

std::vector<float> Initial(const DynamicTableOptions& options, int64_t key) {
  std::vector<float> row(options.dim);
  InitialValues(options.initial, options.name).Fill(key, row.data(), options.dim);
  return row;
}

// A table's expected behaviour, with only maps and loops: admission by exact count, eviction by age, Adagrad.
class Model {
 public:
  explicit Model(const DynamicTableOptions& options) : options_(options) {}

  struct Entry {
    std::vector<float> row, accumulator;
    int64_t frequency = 0, version = 0;
    bool admitted = false;
    bool operator==(const Entry&) const = default;
  };

  std::vector<float> Resolve(const std::vector<int64_t>& keys, int64_t step) {
    for (const int64_t key : keys) {
      Entry& entry = entries[key];
      ++entry.frequency;
      entry.version = step;
    }
    for (const int64_t key : keys) {
      Entry& entry = entries[key];
      if (entry.admitted || entry.frequency < options_.admission.min_frequency) continue;
      entry.admitted = true;
      entry.row = Initial(options_, key);
      entry.accumulator.assign(options_.dim, 0.1f);
    }
    return Lookup(keys);
  }

  std::vector<float> Lookup(const std::vector<int64_t>& keys) const {
    std::vector<float> rows;
    for (const int64_t key : keys) {
      const auto found = entries.find(key);
      std::vector<float> row(options_.dim, options_.default_value);
      if (found != entries.end() && found->second.admitted) row = found->second.row;
      rows.insert(rows.end(), row.begin(), row.end());
    }
    return rows;
  }

  void Update(const std::vector<int64_t>& keys, const std::vector<float>& gradients, float rate) {
    std::map<int64_t, std::vector<std::vector<float>>> terms;  // by key and element
    for (size_t i = 0; i < keys.size(); ++i) {
      auto& of_key = terms.try_emplace(keys[i], options_.dim).first->second;
      for (int64_t d = 0; d < options_.dim; ++d) of_key[d].push_back(gradients[i * options_.dim + d]);
    }
    for (const auto& [key, of_key] : terms) {
      Entry& entry = entries[key];
      for (int64_t d = 0; entry.admitted && d < options_.dim; ++d) {
        const float sum = testing::NaiveBlockSum(of_key[d]);
        entry.accumulator[d] += sum * sum;
        entry.row[d] -= sum * rate / std::sqrt(entry.accumulator[d]);
      }
    }
  }

  std::vector<int64_t> EvictOlderThan(int64_t step) {
    std::vector<int64_t> keys;
    for (const auto& [key, entry] : entries) {
      if (entry.version < step) keys.push_back(key);
    }
    for (const int64_t key : keys) entries.erase(key);
    return keys;
  }

  std::map<int64_t, Entry> entries;

 private:
  DynamicTableOptions options_;
};

// Returns the whole content of a table, in the model's terms.
std::map<int64_t, Model::Entry> Contents(DynamicTable& table) {
  std::map<int64_t, Model::Entry> contents;
  const auto snapshot = *Snapshot::Begin(table, Snapshot::Kind::kFull);
  SnapshotPart part;
  while (snapshot->Next(100, &part)) {
    for (int64_t i = 0; i < part.rows.size(); ++i) {
      Model::Entry entry;
      entry.admitted = part.admitted;
      if (part.admitted) {
        const auto* rows = reinterpret_cast<const float*>(part.rows.rows.data());
        entry.row.assign(rows + i * kDim, rows + (i + 1) * kDim);
        const auto& slot = part.rows.slots[0];
        entry.accumulator.assign(slot.begin() + i * kDim, slot.begin() + (i + 1) * kDim);
      }
      entry.frequency = part.rows.frequencies[i];
      entry.version = part.rows.versions[i];
      EXPECT_TRUE(contents.emplace(part.rows.keys[i], entry).second) << "twice";
    }
  }
  EXPECT_EQ(snapshot->Commit(), OkStatus());
  return contents;
}

struct Scenario {
  uint64_t seed;
  int64_t min_frequency;
  int64_t keys;  // number of different keys
};

// Random calls of a table, compared with the model. Snapshots are taken while it is trained, restored into tables of
// other numbers of workers, and continued by incremental ones.
class RandomCalls {
 public:
  explicit RandomCalls(const Scenario& scenario)
      : scenario_(scenario),
        random_(scenario.seed),
        options_(MakeOptions(scenario)),
        table_(Make(options_)),
        model_(options_) {
    slot_ = *table_->AddSlot("accumulator", 0.1f);
  }

  void Run(int calls) {
    for (int i = 0; i < calls; ++i) {
      switch (random_() % 8) {
        case 0: Evaluate(); break;
        case 1: Evict(); break;
        case 2: Remove(); break;
        case 3: CheckCounts(); break;
        case 4:
          if (i % 4 == 0) TakeSnapshot();
          break;
        default: Train();
      }
      ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << scenario_.seed << ", call " << i;
    }
    EXPECT_EQ(Contents(*table_), model_.entries);
  }

 private:
  static DynamicTableOptions MakeOptions(const Scenario& scenario) {
    DynamicTableOptions options = Options();
    options.admission.min_frequency = scenario.min_frequency;
    options.eviction.steps_to_live = 6;
    options.eviction.keys_per_call = 1 << 20;
    options.record_frequency = options.record_version = options.track_changes = true;
    return options;
  }

  std::vector<int64_t> RandomKeys() {
    std::vector<int64_t> keys(random_() % 3000);
    for (int64_t& key : keys) key = static_cast<int64_t>(random_() % (1 + random_() % scenario_.keys)) - 10;
    return keys;
  }

  void Train() {
    ++step_;
    const std::vector<int64_t> keys = RandomKeys();
    std::vector<float> rows(keys.size() * kDim), gradients(keys.size() * kDim);
    for (float& gradient : gradients) gradient = static_cast<float>(random_() % 1000) / 500 - 1;
    Result<ResolvedKeys> batch = table_->Resolve(keys, {step_, 0}, rows.data(), pool_.Get());
    ASSERT_EQ(batch.status(), OkStatus());
    ASSERT_EQ(rows, model_.Resolve(keys, step_));
    const UpdateRule rule = *AdagradOptions{.learning_rate = 0.1f}.Rule(DType::kFloat32);
    ASSERT_EQ(table_->Update(*batch, gradients.data(), rule, {{slot_}}, step_, pool_.Get()), OkStatus());
    model_.Update(keys, gradients, 0.1f);
  }

  void Evaluate() {
    const std::vector<int64_t> keys = RandomKeys();
    std::vector<float> rows(keys.size() * kDim);
    table_->Lookup(keys, rows.data(), pool_.Get());
    ASSERT_EQ(rows, model_.Lookup(keys));
  }

  void Evict() { ASSERT_EQ(table_->Evict({step_, 0}), model_.EvictOlderThan(step_ - 6)); }

  void Remove() {
    std::vector<int64_t> keys = RandomKeys();
    keys.resize(std::min<size_t>(keys.size(), 20));
    int64_t there = 0;
    for (const int64_t key : keys) there += static_cast<int64_t>(model_.entries.erase(key));
    ASSERT_EQ(table_->Remove(keys), there);
  }

  void CheckCounts() {
    const std::vector<int64_t> keys = RandomKeys();
    std::vector<int64_t> frequencies(keys.size()), versions(keys.size());
    ASSERT_EQ(table_->GetFrequency(keys, frequencies.data()), OkStatus());
    ASSERT_EQ(table_->GetVersion(keys, versions.data()), OkStatus());
    int64_t admitted = 0;
    for (const auto& [key, entry] : model_.entries) admitted += entry.admitted ? 1 : 0;
    ASSERT_EQ(table_->total_count(), admitted);
    ASSERT_EQ(table_->Export().size(), admitted);
    ASSERT_EQ(table_->candidate_count(), static_cast<int64_t>(model_.entries.size()) - admitted);
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto found = model_.entries.find(keys[i]);
      ASSERT_EQ(frequencies[i], found == model_.entries.end() ? 0 : found->second.frequency);
      ASSERT_EQ(versions[i], found == model_.entries.end() ? 0 : found->second.version);
    }
  }

  // The copies: the keys of the last snapshot, on as many workers as they were restored on.
  void TakeSnapshot() {
    const bool full = copies_.empty() || random_() % 3 == 0;
    const auto snapshot = *Snapshot::Begin(*table_, full ? Snapshot::Kind::kFull : Snapshot::Kind::kChanges);
    const std::map<int64_t, Model::Entry> begin = model_.entries;
    if (full) {
      copies_.clear();
      const uint64_t workers = 1 + random_() % 3;
      for (uint64_t i = 0; i < workers; ++i) {
        copies_.push_back(Make(options_));
        ASSERT_TRUE(copies_.back()->AddSlot("accumulator", 0.1f).ok());
      }
    } else {
      for (auto& copy : copies_) copy->Remove(snapshot->removed());
    }
    SnapshotPart part;
    while (snapshot->Next(1 + random_() % 2000, &part)) {
      for (size_t worker = 0; worker < copies_.size(); ++worker) {
        RestoreOptions restore;
        restore.admitted = part.admitted;
        restore.owns = [&](int64_t key) { return MixBits(key) % copies_.size() == worker; };
        ASSERT_EQ(copies_[worker]->Restore(part.rows, restore), OkStatus());
      }
      if (random_() % 2 == 0) Train();
      if (random_() % 4 == 0) Evict();
      if (random_() % 4 == 0) Remove();
    }
    ASSERT_EQ(snapshot->Commit(), OkStatus());
    std::map<int64_t, Model::Entry> restored;
    for (auto& copy : copies_) restored.merge(Contents(*copy));
    ASSERT_EQ(restored, begin) << (full ? "full" : "incremental");
  }

  const Scenario scenario_;
  std::mt19937_64 random_;
  const DynamicTableOptions options_;
  testing::Pool pool_{3};
  std::unique_ptr<DynamicTable> table_;
  Model model_;
  int slot_ = 0;
  int64_t step_ = 0;
  std::vector<std::unique_ptr<DynamicTable>> copies_;
};

TEST(DynamicTable, BehavesLikeAMap) {
  for (const Scenario& scenario :
       {Scenario{1, 0, 50}, Scenario{2, 0, 20000}, Scenario{3, 3, 50}, Scenario{4, 3, 5000}}) {
    RandomCalls(scenario).Run(150);
    if (HasFailure()) return;
  }
}

// Values of rows and slots that are read by number equal the written ones; unknown row numbers are refused.
TEST(DynamicTable, RowsAreReadAndWrittenByTheirNumbers) {
  const auto table = Make(Options());
  const std::vector<int64_t> keys = {7, -3};
  const Result<ResolvedKeys> batch = table->Resolve(keys, {}, nullptr, RunInline);
  ASSERT_EQ(batch.status(), OkStatus());
  const int slot = *table->AddSlot("seen", 0.5f);
  const std::vector<uint32_t> numbers = {batch->rows()[1], kNoRow, batch->rows()[0]};
  std::vector<float> values(3 * kDim), initial = Initial(Options(), -3);
  EXPECT_EQ(table->ReadRows(numbers, std::nullopt, values.data(), RunInline), OkStatus());
  EXPECT_TRUE(std::equal(initial.begin(), initial.end(), values.begin()));
  EXPECT_EQ(values[kDim], 0);
  EXPECT_EQ(table->ReadRows(numbers, slot, values.data(), RunInline), OkStatus());
  EXPECT_EQ(values[0], 0.5f);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  for (const std::optional<int> column : {std::optional<int>(), std::optional<int>(slot)}) {
    std::vector<float> read(values.size());
    EXPECT_EQ(table->WriteRows(numbers, column, values.data(), 1, RunInline), OkStatus());
    EXPECT_EQ(table->ReadRows(numbers, column, read.data(), RunInline), OkStatus());
    for (int64_t i = 0; i < kDim; ++i) read[kDim + i] = values[kDim + i];
    EXPECT_EQ(read, values);
  }
  EXPECT_TRUE(table->Contains(7));
  EXPECT_FALSE(table->Contains(8));
  const std::vector<uint32_t> wrong = {1 << 20};
  EXPECT_EQ(table->ReadRows(wrong, std::nullopt, values.data(), RunInline).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(table->WriteRows(numbers, slot + 1, values.data(), 1, RunInline).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(table->ReadRows(numbers, -1, values.data(), RunInline).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep
