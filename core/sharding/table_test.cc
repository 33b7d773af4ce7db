#include "core/sharding/table.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "core/sharding/placement.h"
#include "core/testing/thread_communicator.h"

namespace lockstep {
namespace {

// Returns rows of any number of bytes; each byte shows its row and position.
std::vector<uint8_t> Rows(int64_t begin, int64_t end, int64_t stride, int64_t row_bytes) {
  std::vector<uint8_t> bytes;
  for (int64_t row = begin; row < end; row += stride) {
    for (int64_t i = 0; i < row_bytes; ++i) bytes.push_back(static_cast<uint8_t>(row * 31 + i * 7 + row / 8));
  }
  return bytes;
}

// A table and the size of its steps. Tables have fewer rows than ranks, as many, and numbers with any remainder.
struct Case {
  int size;
  int64_t rows, row_bytes, step_bytes;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (int size : {1, 2, 3, 4, 5}) {
    for (int64_t rows : {0, 1, 3, 4, 11, 64, 257}) {
      for (int64_t row_bytes : {1, 3, 16}) {
        // One row per step, a few, all at once.
        for (int64_t step_bytes : {int64_t{1}, int64_t{40}, kTableStepBytes}) {
          cases.push_back({size, rows, row_bytes, step_bytes});
        }
      }
    }
  }
  return cases;
}

// Compares both directions with the placements themselves. A round trip alone could hide two errors that cancel.
TEST(Table, IsRelaidBothWays) {
  for (const Case& c : Cases()) {
    testing::RunOnThreads(c.size, [&](Communicator& communicator) {
      const int rank = communicator.rank();
      const RowRange range = ContiguousRange(c.rows, rank, c.size);
      const std::vector<uint8_t> modulo = Rows(rank, c.rows, c.size, c.row_bytes);
      const std::vector<uint8_t> contiguous = Rows(range.begin, range.end, 1, c.row_bytes);
      std::vector<uint8_t> out(modulo.size());
      ASSERT_EQ(RelayToContiguous(communicator, "save", {c.rows, c.row_bytes}, modulo.data(), out.data(), c.step_bytes),
                OkStatus());
      ASSERT_EQ(out, contiguous) << c.size << " ranks, " << c.rows << " rows, steps of " << c.step_bytes;
      ASSERT_EQ(RelayToModulo(communicator, "load", {c.rows, c.row_bytes}, contiguous.data(), out.data(), c.step_bytes),
                OkStatus());
      ASSERT_EQ(out, modulo) << c.size << " ranks, " << c.rows << " rows, steps of " << c.step_bytes;
    });
  }
}

// On every rank the result is the whole table, in the order of the ids.
TEST(Table, IsGatheredById) {
  for (const Case& c : Cases()) {
    testing::RunOnThreads(c.size, [&](Communicator& communicator) {
      const std::vector<uint8_t> shard = Rows(communicator.rank(), c.rows, c.size, c.row_bytes);
      std::vector<uint8_t> whole(c.rows * c.row_bytes);
      ASSERT_EQ(GatherTable(communicator, "whole", {c.rows, c.row_bytes}, shard.data(), whole.data(), c.step_bytes),
                OkStatus());
      ASSERT_EQ(whole, Rows(0, c.rows, 1, c.row_bytes));
    });
  }
}

TEST(Table, GradientIsSummedAtTheOwners) {
  for (const Case& c : Cases()) {
    testing::RunOnThreads(c.size, [&](Communicator& communicator) {
      const int64_t width = c.row_bytes;
      const int rank = communicator.rank();
      // Element i of rank r's gradient is i + r: the sum is size * i + (0 + 1 + ...).
      std::vector<double> gradient(c.rows * width);
      std::iota(gradient.begin(), gradient.end(), rank);
      std::vector<double> sums(LocalRows(c.rows, rank, c.size) * width);
      ASSERT_EQ(ReduceTable(communicator, "gradient", DType::kFloat64, c.rows, width, gradient.data(), sums.data(),
                            c.step_bytes),
                OkStatus());
      for (size_t i = 0; i < sums.size(); ++i) {
        const int64_t element = GlobalRow(i / width, rank, c.size) * width + i % width;
        ASSERT_EQ(sums[i], c.size * element + c.size * (c.size - 1) / 2);
      }
    });
  }
}

}  // namespace
}  // namespace lockstep
