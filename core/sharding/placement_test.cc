#include "core/sharding/placement.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// All sizes up to 5 ranks and 13 rows: this covers every remainder, and tables with fewer rows than ranks.
TEST(Placement, EveryRowHasOnePlaceInBothPlacements) {
  for (int size = 1; size <= 5; ++size) {
    for (int64_t rows = 0; rows <= 13; ++rows) {
      int64_t total = 0, end = 0;
      for (int rank = 0; rank < size; ++rank) {
        const RowRange range = ContiguousRange(rows, rank, size);
        EXPECT_EQ(range.begin, end) << "ranges follow one another";
        EXPECT_EQ(range.count(), LocalRows(rows, rank, size)) << "both placements give a rank as many rows";
        end = range.end;
        total += LocalRows(rows, rank, size);
      }
      EXPECT_EQ(total, rows);
      EXPECT_EQ(end, rows);
      for (int64_t id = 0; id < rows; ++id) {
        EXPECT_LT(LocalRow(id, size), LocalRows(rows, Owner(id, size), size));
        EXPECT_EQ(GlobalRow(LocalRow(id, size), Owner(id, size), size), id);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
