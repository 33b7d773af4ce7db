#include "core/embedding/snapshot.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/embedding/optimizer/adagrad.h"

// Snapshots while a table changes. Random calls, compared with a model, are in dynamic_table_test.cc.

namespace lockstep {
namespace {

DynamicTableOptions Options(int64_t dim) {
  DynamicTableOptions options;
  options.name = "user";
  options.dim = dim;
  options.initial = {InitialOptions::Kind::kUniform, -1, 1, 3};
  options.record_frequency = options.record_version = options.record_seconds = true;
  return options;
}

// The values of a key, as bits.
struct Values {
  std::vector<float> row, slot;
  uint32_t frequency = 0, seconds = 0;
  int64_t version = 0;
  bool operator==(const Values&) const = default;
};
using Contents = std::map<int64_t, Values>;

void Put(const TableRows& rows, int64_t dim, Contents* contents) {
  for (int64_t i = 0; i < rows.size(); ++i) {
    Values values;
    values.row.resize(dim);
    std::memcpy(values.row.data(), rows.rows.data() + i * dim * 4, dim * 4);
    values.slot.assign(rows.slots[0].begin() + i * dim, rows.slots[0].begin() + (i + 1) * dim);
    values.frequency = rows.frequencies[i];
    values.version = rows.versions[i];
    values.seconds = rows.seconds[i];
    ASSERT_TRUE(contents->emplace(rows.keys[i], values).second) << "twice: " << rows.keys[i];
  }
}

// Threads insert, update, evict and remove keys while the snapshot is read. It equals a copy of the table from the
// snapshot's start, in all bits, and the memory of its copies does not grow with the number of steps.
TEST(Snapshot, HasTheRowsOfItsBeginWhileThreadsChangeAllOfThem) {
  constexpr int64_t kDim = 5, kKeys = 4000;
  DynamicTableOptions options = Options(kDim);
  options.eviction.steps_to_live = 2;
  options.eviction.keys_per_call = 200;
  const auto table = *DynamicTable::Create(options);
  const int slot = *table->AddSlot("accumulator", 0.1f);
  const UpdateRule rule = *AdagradOptions{.learning_rate = 0.1f}.Rule(DType::kFloat32);
  std::atomic<int64_t> step{0};
  const auto train = [&](int64_t first, int64_t count, int64_t stride) {
    std::vector<int64_t> keys(count);
    for (int64_t i = 0; i < count; ++i) keys[i] = first + i * stride;
    std::vector<float> gradients(count * kDim, 0.5f);
    const int64_t now = ++step;
    const Result<ResolvedKeys> batch = table->Resolve(keys, {now, static_cast<uint32_t>(now)}, nullptr, RunInline);
    ASSERT_EQ(batch.status(), OkStatus());
    ASSERT_EQ(table->Update(*batch, gradients.data(), rule, {{slot}}, now, RunInline), OkStatus());
  };
  train(0, kKeys, 1);
  train(0, kKeys / 2, 2);
  Contents begin, read;
  Put(table->Export(), kDim, &begin);
  const auto snapshot = *Snapshot::Begin(*table, Snapshot::Kind::kFull);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int64_t thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&, thread] {
      for (int64_t i = 0; !stop; ++i) {
        train((i * 37 + thread * 11) % kKeys, 300, 1 + thread * 3);  // old keys and new ones
        table->Remove(std::vector<int64_t>{(i * 53) % kKeys});
        table->Evict({step, static_cast<uint32_t>(step)});
      }
    });
  }
  SnapshotPart part;
  for (int64_t parts = 0; snapshot->Next(100, &part); ++parts) {
    Put(part.rows, kDim, &read);
    while (step < parts) std::this_thread::yield();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(snapshot->Commit(), OkStatus());
  EXPECT_EQ(read.size(), begin.size());
  EXPECT_TRUE(read == begin);
  Contents end;
  Put(table->Export(), kDim, &end);
  EXPECT_FALSE(end == begin);
}

// The optimizer's first update may come while a save runs.
TEST(Snapshot, HasNoSlotThatCameLater) {
  constexpr int64_t kDim = 3;
  const auto table = *DynamicTable::Create(Options(kDim));
  ASSERT_TRUE(table->AddSlot("first", 0.5f).ok());
  ASSERT_TRUE(table->Resolve(std::vector<int64_t>{1, 2}, {1, 1}, nullptr, RunInline).ok());
  const auto snapshot = *Snapshot::Begin(*table, Snapshot::Kind::kFull);
  ASSERT_TRUE(table->AddSlot("second", 0.25f).ok());
  ASSERT_EQ(table->slots().size(), 2);
  ASSERT_EQ(snapshot->slots().size(), 1);
  EXPECT_EQ(snapshot->slots()[0].name, "first");
  SnapshotPart part;
  int64_t rows = 0;
  while (snapshot->Next(100, &part)) {
    if (part.rows.size() == 0) continue;
    EXPECT_EQ(part.rows.slots.size(), 1);
    rows += part.rows.size();
  }
  EXPECT_EQ(rows, 2);
  EXPECT_EQ(snapshot->Commit(), OkStatus());
}

// No step fails for a save that finds no memory: the save does.
TEST(Snapshot, WithoutMemoryForACopyIsNotCommitted) {
  if (LOCKSTEP_SANITIZED) GTEST_SKIP() << "sanitizers end a process that has no memory";
  // A copy has 72 MB: malloc reserves no room of this size, also not for other threads.
  constexpr int64_t kDim = 1 << 20;
  const auto table = *DynamicTable::Create(Options(kDim));
  for (int slot = 0; slot < 17; ++slot) ASSERT_TRUE(table->AddSlot(std::to_string(slot), 0).ok());
  const Result<ResolvedKeys> batch = table->Resolve(std::vector<int64_t>{2}, {1, 1}, nullptr, RunInline);
  ASSERT_EQ(batch.status(), OkStatus());
  auto snapshot = *Snapshot::Begin(*table, Snapshot::Kind::kFull);
  malloc_trim(0);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit none = {1 << 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &none), 0);
  table->Stamp(*batch, {2, 2});
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  std::vector<int64_t> versions(1);
  EXPECT_EQ(table->GetVersion(std::vector<int64_t>{2}, versions.data()), OkStatus());
  EXPECT_EQ(versions[0], 2);
  SnapshotPart part;
  while (snapshot->Next(100, &part)) {
  }
  const Status status = snapshot->Commit();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("table 'user': no memory"), std::string::npos) << status.message();
  snapshot.reset();
  // The next one is whole.
  snapshot = *Snapshot::Begin(*table, Snapshot::Kind::kFull);
  Contents read;
  while (snapshot->Next(100, &part)) Put(part.rows, kDim, &read);
  EXPECT_EQ(snapshot->Commit(), OkStatus());
  EXPECT_EQ(read.size(), 1);
}

}  // namespace
}  // namespace lockstep
