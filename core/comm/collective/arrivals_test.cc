// Promise of this file (security.md): counts and sizes of a lying rank are an error that names it, before anything is
// allocated.

#include "core/comm/collective/arrivals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "core/comm/collective/adasum.h"
#include "core/testing/thread_communicator.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Numbers = std::vector<int64_t>;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

TEST(Arrivals, ACountThatIsKnownMayNotDiffer) {
  const Numbers wanted = {2, 3};
  char memory[5];
  const Allocate allocate = Expecting("save", wanted, memory);
  EXPECT_EQ(*allocate(wanted), static_cast<void*>(memory));
  // An equal sum is not enough: data would be attributed to other ranks.
  for (const Numbers& counts : {Numbers{2, 4096}, Numbers{3, 2}, Numbers{2, -3}}) {
    const Result<void*> got = allocate(counts);
    EXPECT_EQ(got.status().code(), StatusCode::kDataLoss);
    EXPECT_THAT(got.status().message(), AllOf(HasSubstr("'save'"), HasSubstr("rank "), HasSubstr("wanted ")));
  }
}

TEST(Arrivals, AnAnnouncementBeyondTheMachinesMemoryNamesItsRank) {
  EXPECT_EQ(CheckAnnounced("x", Numbers{1 << 20, 0, 5}, 8), OkStatus());
  for (const Numbers& counts : {Numbers{0, -1}, Numbers{0, kHuge}, Numbers{0, int64_t{1} << 58}}) {
    const Status status = CheckAnnounced("x", counts, 64);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("'x'"), HasSubstr("rank 1 announces")));
  }
  // Each of them would fit.
  const Numbers many(512, int64_t{4} << 30);
  EXPECT_EQ(CheckAnnounced("x", many, 1 << 8).code(), StatusCode::kDataLoss);
  EXPECT_THAT(CheckAnnounced("x", Numbers{0, kHuge}, 1, std::vector<int>{4, 6}).message(), HasSubstr("rank 6"));
}

TEST(Arrivals, AMessageIsReadToItsEndAndNotBeyond) {
  std::string bytes(2 * sizeof(int64_t), '\0');
  bytes[0] = 2;
  bytes += "abcd";
  MessageReader reader("route", 3, bytes);
  EXPECT_EQ(*reader.Number("ids"), 2);
  EXPECT_EQ(*reader.Number("ids"), 0);
  EXPECT_EQ(*reader.Take(1, 2, "pairs"), "ab");
  EXPECT_EQ(reader.End().code(), StatusCode::kDataLoss);
  EXPECT_EQ(reader.Number("ids").status().code(), StatusCode::kDataLoss);
  for (const int64_t count : {int64_t{-1}, int64_t{2}, int64_t{1} << 62, int64_t{1} << 63, kHuge}) {
    const Status status = reader.Take(count, 2, "pairs").status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("'route'"), HasSubstr("rank 3"), HasSubstr("pairs")));
  }
  EXPECT_EQ(*reader.Take(2, 1, "characters"), "cd");
  EXPECT_EQ(reader.End(), OkStatus());
}

TEST(Arrivals, ALimitHoldsBeforeMemoryIsAllocated) {
  Arrivals arrivals("lists", /*most_bytes=*/100);
  EXPECT_TRUE(arrivals.Into(1)(Numbers{100, 0}).ok());
  EXPECT_EQ(arrivals.From(0).size(), 100u);
  EXPECT_EQ(arrivals.From(1).size(), 0u);
  const Status status = arrivals.Into(1)(Numbers{0, 101}).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("'lists'"), HasSubstr("rank 1 announces 101")));
}

TEST(Arrivals, NumbersOfAllRanksAreInTheirLimits) {
  const auto with = [](int64_t of_rank_1) {
    Status status;
    testing::RunOnThreads(2, [&](Communicator& communicator) {
      const bool lies = communicator.rank() == 1;
      const std::vector<SharedNumber> numbers = {{"link", 7, 1, kHuge},
                                                 {"changed rows of table 'user'", lies ? of_rank_1 : 3, 0, 10}};
      const Result<Numbers> got = GatherNumbers(communicator, "save", numbers);
      if (communicator.rank() == 0) status = got.status();
      if (got.ok()) {
        EXPECT_EQ(*got, (Numbers{7, 3, 7, of_rank_1}));
      }
    });
    return status;
  };
  EXPECT_EQ(with(10), OkStatus());
  for (const int64_t lie : {int64_t{-1}, int64_t{11}, kHuge}) {
    const Status status = with(lie);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("'save'"), HasSubstr("rank 1 sends"), HasSubstr("table 'user'")));
  }
}

// Rank 1 sends more items than the caller's memory has.
TEST(Arrivals, MoreNumbersThanWantedAreRefused) {
  Status status;
  testing::RunOnThreads(2, [&](Communicator& communicator) {
    if (communicator.rank() == 0) {
      status = GatherNumbers(communicator, "save", std::vector<SharedNumber>{{"flags", 1, 0, 1}}).status();
      return;
    }
    const Numbers many(512, 0x41);
    Numbers arrived(513);
    EXPECT_EQ(communicator.AllGatherV("save", {DType::kInt64, 1}, 512, many.data(),
                                      [&](auto) -> Result<void*> { return static_cast<void*>(arrived.data()); }),
              OkStatus());
  });
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("'save'"), HasSubstr("rank 1 sends 512 items, wanted 1")));
}

TEST(Arrivals, AnAdasumTakesNoOtherShare) {
  Status status;
  testing::RunOnThreads(2, [&](Communicator& communicator) {
    const Numbers counts = {4};
    std::vector<float> in(4, 1), out(4);
    if (communicator.rank() == 0) {
      status = AdasumAllReduce(communicator, "sum", DType::kFloat32, counts, in.data(), out.data());
      return;
    }
    const std::vector<float> many(4096, 1);
    std::vector<float> arrived(1 << 16);
    (void)communicator.AllToAllV("sum (adasum of 4)", {DType::kFloat32, 1}, Numbers{4096, 0}, many.data(),
                                 [&](auto) -> Result<void*> { return static_cast<void*>(arrived.data()); });
  });
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 1 sends 4096 items"), HasSubstr("adasum")));
}

}  // namespace
}  // namespace lockstep
