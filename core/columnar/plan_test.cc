#include "core/columnar/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>

namespace lockstep::columnar {
namespace {

using Groups = std::vector<std::vector<int64_t>>;
using Row = std::tuple<int, int, int64_t>;  // file, row group, row in it

// All rows, in the order of the files: the oracle, which knows nothing of shares.
std::vector<Row> AllRows(const Groups& groups) {
  std::vector<Row> rows;
  for (int file = 0; file < static_cast<int>(groups.size()); ++file) {
    for (int group = 0; group < static_cast<int>(groups[file].size()); ++group) {
      for (int64_t row = 0; row < groups[file][group]; ++row) rows.emplace_back(file, group, row);
    }
  }
  return rows;
}

// Returns the rows that a plan reads, in order, and checks the promises of its ranges.
std::vector<Row> RowsOf(RowPlan plan) {
  std::vector<Row> rows;
  std::map<int, bool> ended;
  while (const std::optional<RowRange> range = plan.Next()) {
    EXPECT_GT(range->rows, 0);
    EXPECT_FALSE(ended[range->file]) << "a range behind the file's last one";
    ended[range->file] = range->last_of_file;
    for (int64_t i = 0; i < range->rows; ++i) rows.emplace_back(range->file, range->group, range->first + i);
  }
  for (const auto& [file, end] : ended) EXPECT_TRUE(end) << "file " << file << " has no last range";
  return rows;
}

// Returns a plan of options that must be valid.
RowPlan MakePlan(const Groups& groups, const PlanOptions& options) {
  auto plan = RowPlan::Make(groups, options);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return *std::move(plan);
}

// Returns up to four files of up to four row groups. A quarter of the groups, and some files, have no rows.
Groups RandomGroups(std::mt19937& random) {
  Groups groups(random() % 5);
  for (auto& file : groups) {
    file.resize(random() % 5);
    for (int64_t& rows : file) rows = random() % 4 == 0 ? 0 : random() % 40;
  }
  return groups;
}

// Training rests on this promise: the workers' rows together are the data, without repeats and without gaps. Batch
// sizes and turns are small, so that their ends fall before, on and after the ends of row groups.
TEST(RowPlan, GivesEveryRowToExactlyOneWorkerInEveryWay) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    const Groups groups = RandomGroups(random);
    for (PartitionBy way : {PartitionBy::kRows, PartitionBy::kRowGroups, PartitionBy::kBatches}) {
      PlanOptions options{.partition_by = way, .partition_count = 1 + static_cast<int64_t>(random() % 5)};
      options.batch_size = 1 + random() % 9;
      if (way != PartitionBy::kBatches) options.parallel_files = 1 + random() % 4;
      options.sequential_batches = 1 + random() % 3;
      std::vector<Row> all;
      for (; options.partition_index < options.partition_count; ++options.partition_index) {
        const RowPlan plan = MakePlan(groups, options);
        const std::vector<Row> rows = RowsOf(plan);
        EXPECT_EQ(static_cast<int64_t>(rows.size()), plan.total_rows());
        all.insert(all.end(), rows.begin(), rows.end());
      }
      std::sort(all.begin(), all.end());
      EXPECT_EQ(all, AllRows(groups)) << "round " << round;
    }
  }
}

// Checks PartitionBy's limits of the difference between shares, for up to six workers.
TEST(RowPlan, SharesByRowsDifferByOneRowAndByRowGroupsByOneRowGroup) {
  std::mt19937 random(12);
  for (int round = 0; round < 300; ++round) {
    const Groups groups = RandomGroups(random);
    int64_t largest = 0;
    for (const auto& file : groups) {
      for (int64_t rows : file) largest = std::max(largest, rows);
    }
    for (PartitionBy way : {PartitionBy::kRows, PartitionBy::kRowGroups}) {
      PlanOptions options{.partition_by = way, .partition_count = 1 + static_cast<int64_t>(random() % 6)};
      std::vector<int64_t> shares;
      for (; options.partition_index < options.partition_count; ++options.partition_index) {
        shares.push_back(MakePlan(groups, options).total_rows());
      }
      const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
      EXPECT_LE(*most - *least, way == PartitionBy::kRows ? 1 : largest);
    }
  }
}

// In each step, the workers' batches in order are the batch of one worker with the sum of their batch sizes. This makes
// runs on different numbers of workers comparable.
TEST(RowPlan, BatchesOfAllWorkersTogetherAreTheBatchesOfOne) {
  const Groups groups = {{10, 7}, {}, {23, 1}};
  const std::vector<Row> all = AllRows(groups);
  constexpr int64_t kWorkers = 3, kBatch = 4;
  std::vector<std::vector<Row>> shares;
  for (int64_t worker = 0; worker < kWorkers; ++worker) {
    shares.push_back(RowsOf(MakePlan(groups, {.partition_by = PartitionBy::kBatches,
                                              .partition_count = kWorkers,
                                              .partition_index = worker,
                                              .batch_size = kBatch})));
  }
  for (size_t step = 0; step < all.size() / (kWorkers * kBatch); ++step) {
    std::vector<Row> joined;
    for (const auto& share : shares) {
      joined.insert(joined.end(), share.begin() + step * kBatch, share.begin() + (step + 1) * kBatch);
    }
    const auto begin = all.begin() + step * kWorkers * kBatch;
    EXPECT_EQ(joined, std::vector<Row>(begin, begin + kWorkers * kBatch));
  }
  // 41 rows are 3 steps of 12; the remaining 5 are divided as evenly as possible.
  EXPECT_THAT((std::vector<size_t>{shares[0].size(), shares[1].size(), shares[2].size()}),
              testing::ElementsAre(13, 14, 14));
}

TEST(RowPlan, ReadsSeveralFilesInTurnWhereAskedTo) {
  const Groups groups = {{5}, {3}, {2}};
  const std::vector<Row> rows = RowsOf(MakePlan(groups, {.batch_size = 2, .parallel_files = 2}));
  std::vector<int> files;
  for (const Row& row : rows) files.push_back(std::get<0>(row));
  // Two rows at a time. File 2 takes the place of file 1 as soon as that ends, and fills its turn.
  EXPECT_THAT(files, testing::ElementsAre(0, 0, 1, 1, 0, 0, 1, 2, 0, 2));
}

// Skip and Next agree on the place of a row, also if a skip ends inside a range or beyond the end. GroupsLeft names
// every row group that is still to come; a missing one would not be opened.
TEST(RowPlan, SkipsAsIfTheRowsHadBeenRead) {
  std::mt19937 random(13);
  for (int round = 0; round < 200; ++round) {
    const Groups groups = RandomGroups(random);
    PlanOptions options{.partition_by = static_cast<PartitionBy>(random() % 3), .partition_count = 2};
    options.batch_size = 1 + random() % 9;
    if (options.partition_by != PartitionBy::kBatches) options.parallel_files = 1 + random() % 3;
    RowPlan plan = MakePlan(groups, options);
    std::vector<Row> rows = RowsOf(plan);
    const size_t skipped = random() % (rows.size() + 2);
    plan.Skip(skipped);
    rows.erase(rows.begin(), rows.begin() + std::min(skipped, rows.size()));
    // Every group that it names is still to come.
    const auto left = plan.GroupsLeft();
    for (const auto& [file, group, row] : rows) {
      ASSERT_TRUE(left.contains(file));
      EXPECT_THAT(left.at(file), testing::Contains(group));
    }
    EXPECT_EQ(RowsOf(plan), rows) << "round " << round;
  }
}

// Messages use the names that a Python user knows, and say the given and the allowed value.
TEST(RowPlan, RefusesOptionsOutOfRangeByName) {
  const auto message = [](const PlanOptions& options) { return RowPlan::Make({{5}}, options).status().message(); };
  EXPECT_EQ(message({.batch_size = 0}), "batch_size is 0, wanted 1 or more");
  EXPECT_EQ(message({.batch_size = -3}), "batch_size is -3, wanted 1 or more");
  EXPECT_EQ(message({.partition_count = 0}), "partition_count is 0, wanted 1 or more");
  EXPECT_EQ(message({.partition_count = 2, .partition_index = 2}),
            "partition_index is 2, wanted 0 to 1 (partition_count is 2)");
  EXPECT_EQ(message({.parallel_files = 0}), "num_parallel_reads is 0, wanted 1 or more");
  EXPECT_EQ(message({.sequential_batches = 0}), "num_sequential_reads is 0, wanted 1 or more");
}

// The error is not OUT_OF_RANGE, which would end the training as if all rows had been read.
TEST(RowPlan, NumbersBeyond64BitsAreErrorsAndNoEndOfTheData) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  EXPECT_EQ(RowPlan::Make({{kHuge}, {kHuge}}, {}).status().code(), StatusCode::kDataLoss);
  const PlanOptions options{.partition_by = PartitionBy::kBatches, .partition_count = 2, .batch_size = kHuge};
  EXPECT_EQ(RowPlan::Make({{5}}, options).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::columnar
