#include "core/sharding/placement.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace lockstep {
namespace {

// Checks that every row of a table has one place in training and one in checkpoints, and that both give a rank as many.
void ExpectOnePlaceForEachRow(const Placement& placement, int size) {
  SCOPED_TRACE(testing::Message() << placement.rows << " rows in blocks of " << placement.block << " from rank "
                                  << placement.first << " of " << size);
  int64_t total = 0, end = 0;
  for (int i = 0; i < size; ++i) {
    const int rank = (placement.first + i) % size;
    const RowRange range = placement.ContiguousRange(rank, size);
    EXPECT_EQ(range.begin, end) << "ranges follow one another";
    EXPECT_EQ(range.count(), placement.LocalRows(rank, size)) << "both placements give a rank as many rows";
    EXPECT_LE(range.count(), placement.LocalRows(placement.first, size)) << "no rank has more than the first";
    end = range.end;
    total += placement.LocalRows(rank, size);
  }
  EXPECT_EQ(total, placement.rows);
  EXPECT_EQ(end, placement.rows);
  std::vector<int64_t> below(size, 0);
  for (int64_t id = 0; id < placement.rows; ++id) {
    const int owner = placement.Owner(id, size);
    const int64_t local = placement.LocalRow(id, size);
    for (int rank = 0; rank < size; ++rank) EXPECT_EQ(placement.LocalRowsBelow(id, rank, size), below[rank]);
    EXPECT_EQ(local, below[owner]) << "a rank's rows are in ascending order, without gaps";
    EXPECT_EQ(placement.GlobalRow(local, owner, size), id);
    ++below[owner];
  }
}

// All sizes up to 5 ranks and 13 rows: this covers every remainder, and tables with fewer rows than ranks.
TEST(Placement, EveryRowHasOnePlaceInTrainingAndInCheckpoints) {
  for (int size = 1; size <= 5; ++size) {
    for (int first = 0; first < size; ++first) {
      for (int64_t rows = 0; rows <= 13; ++rows) {
        for (int64_t block = 1; block <= 14; ++block) ExpectOnePlaceForEachRow({rows, block, first}, size);
      }
    }
  }
}

TEST(Placement, RowsOfARankAreThoseOfItsRemainder) {
  EXPECT_EQ(Placement(11).Owner(7, 3), 1);
  EXPECT_EQ(Placement(11).LocalRow(7, 3), 2);
  EXPECT_EQ(Placement(11, 1, 2).Owner(7, 3), 0) << "from rank 2 on";
}

TEST(Placement, AWholeTableIsOnOneRank) {
  const Placement placement(11, 11, 1);
  EXPECT_EQ(placement.LocalRows(0, 3), 0);
  EXPECT_EQ(placement.LocalRows(1, 3), 11);
  EXPECT_EQ(placement.ContiguousRange(1, 3).count(), 11);
  EXPECT_EQ(placement.Owner(10, 3), 1);
  EXPECT_EQ(placement.LocalRow(10, 3), 10);
}

TEST(KeyPlacement, RemaindersAreNeverNegative) {
  const KeyPlacement remainder{KeyPlacement::Kind::kRemainder};
  const int64_t lowest = std::numeric_limits<int64_t>::min(), highest = std::numeric_limits<int64_t>::max();
  for (int size = 1; size <= 5; ++size) {
    for (int64_t key = -11; key <= 11; ++key) {
      const int owner = remainder.Owner(key, size);
      EXPECT_EQ((key + 11 * 60 - owner) % size, 0) << key;
      EXPECT_TRUE(owner >= 0 && owner < size) << key;
    }
    EXPECT_EQ(remainder.Owner(highest, size), highest % size);
    EXPECT_EQ(remainder.Owner(lowest, size), remainder.Owner(lowest + size, size));
  }
}

TEST(KeyPlacement, HashesSpreadMultiplesOfTheNumberOfRanks) {
  std::vector<int> owned(4);
  for (int64_t key = -4000; key < 4000; key += 4) ++owned[KeyPlacement().Owner(key, 4)];
  for (const int count : owned) EXPECT_NEAR(count, 500, 100);
}

TEST(KeyPlacement, OneRankHasAllKeysIfItIsInTheJob) {
  const KeyPlacement one{KeyPlacement::Kind::kOneRank, 2};
  EXPECT_EQ(one.Owner(-7, 3), 2);
  EXPECT_EQ(one.OwnerOfString("word", 3), 2);
  EXPECT_EQ(one.Check(3), OkStatus());
  EXPECT_EQ(one.Check(2).message(), "its keys are on rank 2; the job has 2 ranks");
}

TEST(KeyPlacement, IsANumberInAttributesAndCheckpoints) {
  for (const int64_t number : {-2, -1, 0, 5}) EXPECT_EQ(KeyPlacement::OfNumber(number)->number(), number);
  EXPECT_EQ(*KeyPlacement::OfNumber(-2), KeyPlacement());
  EXPECT_EQ(KeyPlacement::OfNumber(-3).status().message(), "got the owner -3 of keys, wanted -2, -1 or a rank");
  EXPECT_EQ(KeyPlacement::OfNumber(int64_t{1} << 31).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep
