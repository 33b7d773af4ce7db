#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/embedding/dynamic_table.h"
#include "core/embedding/snapshot.h"

namespace lockstep {
namespace {

constexpr int64_t kDim = 4;

// Optimizers that come and go take the memory of one.
TEST(Slots, ThatWereDroppedBeginAnew) {
  DynamicTableOptions options;
  options.name = "item";
  options.dim = kDim;
  options.track_changes = true;
  const auto table = *DynamicTable::Create(options);
  ASSERT_EQ(table->Resolve(std::vector<int64_t>{5, 6, 7}, {}, nullptr, RunInline).status(), OkStatus());
  const std::vector<float> ones(2 * kDim, 1);
  const std::vector<uint32_t> numbers = {0, 1};
  std::vector<float> read(2 * kDim);
  const int first = *table->AddSlot("adam/m", 0);
  const int64_t bytes = table->bytes();
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(table->WriteRows(numbers, first, ones.data(), 0, RunInline), OkStatus());
    EXPECT_FALSE(table->DropSlot("adam"));
    EXPECT_TRUE(table->DropSlot("adam/m"));
    EXPECT_FALSE(table->DropSlot("adam/m"));
    EXPECT_FALSE(table->changes_known());
    const std::string name = i % 2 == 0 ? "adagrad/a" : "adam/m";
    EXPECT_EQ(*table->AddSlot(name, 0.5), first);
    EXPECT_EQ(table->slot_names(), std::vector<std::string>{name});
    ASSERT_EQ(table->ReadRows(numbers, first, read.data(), RunInline), OkStatus());
    EXPECT_EQ(read, std::vector<float>(2 * kDim, 0.5));
    EXPECT_EQ(table->bytes(), bytes);
    ASSERT_TRUE(table->DropSlot(name));
    ASSERT_EQ(*table->AddSlot("adam/m", 0), first);
  }
  // A slot that a snapshot still reads does not change.
  ASSERT_EQ(table->WriteRows(numbers, first, ones.data(), 0, RunInline), OkStatus());
  const auto snapshot = *Snapshot::Begin(*table, Snapshot::Kind::kFull);
  ASSERT_TRUE(table->DropSlot("adam/m"));
  EXPECT_NE(*table->AddSlot("ftrl/n", 0.5), first);
  TableRows rows;
  for (SnapshotPart part; snapshot->Next(100, &part);) rows.Append(part.rows);
  EXPECT_EQ(std::ranges::count(rows.slots[first], 1.0f), 2 * kDim);
}

}  // namespace
}  // namespace lockstep
