#include "core/sharding/table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <ostream>
#include <vector>

#include "core/base/strings.h"
#include "core/sharding/placement.h"
#include "core/testing/thread_communicator.h"

namespace lockstep {
namespace {

// Adds a row of any number of bytes; each byte shows its row and position.
void AddRow(int64_t row, int64_t row_bytes, std::vector<uint8_t>* bytes) {
  for (int64_t i = 0; i < row_bytes; ++i) bytes->push_back(static_cast<uint8_t>(row * 31 + i * 7 + row / 8));
}

std::vector<uint8_t> Rows(RowRange range, int64_t row_bytes) {
  std::vector<uint8_t> bytes;
  for (int64_t row = range.begin; row < range.end; ++row) AddRow(row, row_bytes, &bytes);
  return bytes;
}

// A table and the size of its steps. Tables have fewer rows than ranks, as many, and numbers with any remainder.
struct Case {
  int size;
  Placement placement;
  int64_t row_bytes, step_bytes;

  int64_t rows() const { return placement.rows; }
  // Returns the rows of a rank in training.
  std::vector<uint8_t> Shard(int rank) const {
    std::vector<uint8_t> bytes;
    for (int64_t row = 0; row < rows(); ++row) {
      if (placement.Owner(row, size) == rank) AddRow(row, row_bytes, &bytes);
    }
    return bytes;
  }
};

std::ostream& operator<<(std::ostream& stream, const Case& c) {
  return stream << c.rows() << " rows in blocks of " << c.placement.block << " from rank " << c.placement.first
                << " of " << c.size << ", steps of " << c.step_bytes;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (int size : {1, 2, 3, 4, 5}) {
    for (int64_t rows : {0, 1, 3, 4, 11, 64, 257}) {
      for (int64_t row_bytes : {1, 3, 16}) {
        // One row per step, a few, all at once.
        for (int64_t step_bytes : {int64_t{1}, int64_t{40}, kTableStepBytes}) {
          cases.push_back({size, {rows}, row_bytes, step_bytes});
          cases.push_back({size, {rows, 3, size - 1}, row_bytes, step_bytes});
          cases.push_back({size, {rows, std::max<int64_t>(1, rows), size / 2}, row_bytes, step_bytes});
        }
      }
    }
  }
  return cases;
}

// Compares both directions with the placements themselves. A round trip by itself could hide two errors that cancel.
TEST(Table, IsRelaidBothWays) {
  for (const Case& c : Cases()) {
    testing::RunOnThreads(c.size, [&](Communicator& communicator) {
      const int rank = communicator.rank();
      const std::vector<uint8_t> shard = c.Shard(rank);
      const std::vector<uint8_t> contiguous = Rows(c.placement.ContiguousRange(rank, c.size), c.row_bytes);
      const RowRange range = c.placement.ContiguousRange(rank, c.size);
      const MovedTable table{c.placement, c.row_bytes};
      std::vector<uint8_t> out;
      // Checks that parts follow one another and are not longer than a step; returns their bytes.
      const auto bytes_of = [&](RowRange rows) {
        EXPECT_EQ(rows.begin, range.begin + static_cast<int64_t>(out.size()) / c.row_bytes) << c;
        EXPECT_GT(rows.count(), 0);
        EXPECT_LE(rows.count(), std::max<int64_t>(1, c.step_bytes / c.row_bytes)) << c;
        return rows.count() * c.row_bytes;
      };
      const auto take = [&](RowRange rows, const char* data) {
        out.insert(out.end(), data, data + bytes_of(rows));
        return OkStatus();
      };
      ASSERT_EQ(
          RelayToContiguous(communicator, "save", table, RowsIn(shard.data(), table.row_bytes), take, c.step_bytes),
          OkStatus());
      ASSERT_EQ(out, contiguous) << c;
      std::vector<uint8_t> back(shard.size());
      out.clear();
      const auto fill = [&](RowRange rows, char* data) {
        const auto begin = contiguous.begin() + static_cast<int64_t>(out.size());
        const auto end = begin + bytes_of(rows);
        std::copy(begin, end, data);
        out.insert(out.end(), begin, end);
        return OkStatus();
      };
      ASSERT_EQ(RelayFromContiguous(communicator, "load", table, fill, back.data(), c.step_bytes), OkStatus());
      ASSERT_EQ(back, shard) << c;
    });
  }
}

// A rank that cannot write or read a piece tells the others, in any step, also after the last one.
TEST(Table, ErrorsOfOneRankReachAll) {
  for (int64_t failing_row : {1, 4, 5}) {
    testing::RunOnThreads(2, [&](Communicator& communicator) {
      const MovedTable table{Placement(6), 1};
      const std::vector<char> shard(3);
      std::vector<char> back(3);
      const auto check = [&](RowRange rows) {
        return rows.begin == failing_row ? DataLoss(StrCat("row ", rows.begin, " is damaged")) : OkStatus();
      };
      const Status damaged = DataLoss(StrCat("rank ", failing_row / 3, ": row ", failing_row, " is damaged"));
      const auto take = [&](RowRange rows, const char*) { return check(rows); };
      const auto fill = [&](RowRange rows, char*) { return check(rows); };
      EXPECT_EQ(RelayToContiguous(communicator, "save", table, RowsIn(shard.data(), table.row_bytes), take, 1),
                damaged);
      EXPECT_EQ(RelayFromContiguous(communicator, "load", table, fill, back.data(), 1), damaged);
      EXPECT_EQ(communicator.Barrier("still usable"), OkStatus());
    });
  }
}

// On every rank the result is the whole table, in the order of the ids.
TEST(Table, IsGatheredById) {
  for (const Case& c : Cases()) {
    testing::RunOnThreads(c.size, [&](Communicator& communicator) {
      const std::vector<uint8_t> shard = c.Shard(communicator.rank());
      std::vector<uint8_t> whole(c.rows() * c.row_bytes);
      ASSERT_EQ(
          GatherTable(communicator, "whole", {c.placement, c.row_bytes}, shard.data(), whole.data(), c.step_bytes),
          OkStatus());
      ASSERT_EQ(whole, Rows({0, c.rows()}, c.row_bytes)) << c;
    });
  }
}

TEST(Table, GradientIsSummedAtTheOwners) {
  for (const Case& c : Cases()) {
    testing::RunOnThreads(c.size, [&](Communicator& communicator) {
      const int64_t width = c.row_bytes;
      const int rank = communicator.rank();
      // Element i of rank r's gradient is i + r: the sum is size * i + (0 + 1 + ...).
      std::vector<double> gradient(c.rows() * width);
      std::iota(gradient.begin(), gradient.end(), rank);
      std::vector<double> sums(c.placement.LocalRows(rank, c.size) * width);
      ASSERT_EQ(ReduceTable(communicator, "gradient", DType::kFloat64, c.placement, width, gradient.data(), sums.data(),
                            c.step_bytes),
                OkStatus());
      for (size_t i = 0; i < sums.size(); ++i) {
        const int64_t element = c.placement.GlobalRow(i / width, rank, c.size) * width + i % width;
        ASSERT_EQ(sums[i], c.size * element + c.size * (c.size - 1) / 2);
      }
    });
  }
}

}  // namespace
}  // namespace lockstep
