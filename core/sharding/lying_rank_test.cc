// Promise of this file (security.md): counts and sizes of a lying rank are an error that names it, before anything is
// allocated.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/sharding/exchange.h"
#include "core/sharding/lookup.h"
#include "core/sharding/string_route.h"
#include "core/sharding/table.h"
#include "core/testing/thread_communicator.h"

// Rank 1 takes part in an exchange of this folder with a message that no rank of ours would send. Rank 0 gets an error
// that names the exchange and rank 1. It allocates nothing that the message does not hold, and touches no other memory,
// which the address sanitizer observes.

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Numbers = std::vector<int64_t>;

constexpr int64_t kRows = 100;

// Runs `victim` on rank 0, while rank 1 sends `message` to it in the exchange `name`. Returns rank 0's status.
Status WithMessage(const std::string& name, Item item, const void* message, int64_t items, bool to_all,
                   const std::function<Status(Communicator&)>& victim) {
  Status status;
  testing::RunOnThreads(2, [&](Communicator& communicator) {
    if (communicator.rank() == 0) {
      status = victim(communicator);
      return;
    }
    std::vector<char> arrived;
    const Allocate allocate = [&](std::span<const int64_t> counts) -> Result<void*> {
      arrived.resize(static_cast<size_t>((counts[0] + counts[1]) * item.bytes()));
      return static_cast<void*>(arrived.data());
    };
    EXPECT_EQ(to_all ? communicator.AllGatherV(name, item, items, message, allocate)
                     : communicator.AllToAllV(name, item, Numbers{items, 0}, message, allocate),
              OkStatus());
  });
  return status;
}

// Routes 8 ids in each of two tables. The ids of both are on rank 0.
Status RouteTwo(Communicator& communicator, Numbers* allocated) {
  const Numbers ids = {0, 2, 4, 6, 8, 10, 12, 14};
  std::vector<int32_t> inverse(8);
  const LookupIds user{"user", Placement(kRows), DType::kInt64, ids.data(), 8, inverse.data()};
  const std::vector<LookupIds> lookups = {user, user};
  const Result<RoutePlan> plan = PlanRoute(2, lookups);
  EXPECT_TRUE(plan.ok());
  std::vector<Splits> splits(2);
  std::vector<Numbers> memory(2);
  return ExchangeRoute(communicator, "route", *plan, splits, [&](size_t l, int64_t count) -> Result<int64_t*> {
    allocated->push_back(count);
    memory[l].resize(static_cast<size_t>(count));
    return memory[l].data();
  });
}

TEST(LyingRank, NumbersInTheMessageOfARouteAreComparedWithItsLength) {
  for (const Numbers& message : std::vector<Numbers>{{1},         // fewer numbers than lookups
                                                     {3, 3},      // announces ids and sends none
                                                     {-7, 0},     // a negative number, which would shorten the memory
                                                     {-1, 1, 5},  // which another one seems to make good
                                                     {int64_t{1} << 30, 0},   // 8 GiB
                                                     {int64_t{1} << 61, 0},   // times 8 bytes: 0
                                                     {INT64_MAX, INT64_MAX},  // a sum that overflows
                                                     {1, 1, 5, 6, 7}}) {      // more ids than announced
    SCOPED_TRACE(::testing::PrintToString(message));
    Numbers allocated;
    const Status status =
        WithMessage("route of 2 lookups", {DType::kInt64}, message.data(), static_cast<int64_t>(message.size()), false,
                    [&](Communicator& communicator) { return RouteTwo(communicator, &allocated); });
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("'route of 2 lookups'"), HasSubstr("rank 1")));
    EXPECT_EQ(allocated, Numbers());
  }
}

TEST(LyingRank, KeysThatWereLookedUpLessThanNeverAreRefused) {
  for (const int64_t times : {int64_t{-1}, INT64_MAX, INT64_MIN}) {
    const Numbers message = {5, 1, 7, times};
    const Status status = WithMessage("route", {DType::kInt64, 2}, message.data(), 2, false, [](Communicator& c) {
      const Numbers keys = {1, 2, 3};
      std::vector<int32_t> inverse(3);
      LookupIds lookup{"user", std::nullopt, DType::kInt64, keys.data(), 3, inverse.data()};
      lookup.counted = true;
      const Result<RoutePlan> plan = PlanRoute(2, {&lookup, 1});
      std::vector<Splits> splits(1);
      Numbers memory;
      return ExchangeRoute(c, "route", *plan, splits, [&](size_t, int64_t count) -> Result<int64_t*> {
        memory.resize(static_cast<size_t>(2 * count));
        return memory.data();
      });
    });
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("'route'"), HasSubstr("rank 1"), HasSubstr("key 7")));
  }
}

TEST(LyingRank, AMessageOfARouteThatFitsIsRead) {
  const Numbers message = {1, 2, 5, 6, 7};
  Numbers allocated;
  EXPECT_EQ(WithMessage("route of 2 lookups", {DType::kInt64}, message.data(), 5, false,
                        [&](Communicator& communicator) { return RouteTwo(communicator, &allocated); }),
            OkStatus());
  EXPECT_EQ(allocated, (Numbers{9, 10}));
}

TEST(LyingRank, StringsAfterTheEndOfTheirMessageAreAnError) {
  const std::vector<std::string_view> ids = {"a", "b"};
  std::string message(sizeof(int64_t), '\0');
  message += "rest";
  const Status status =
      WithMessage("route of 1 lookups of strings", {DType::kUInt8}, message.data(),
                  static_cast<int64_t>(message.size()), false, [&](Communicator& communicator) {
                    std::vector<int32_t> inverse(2);
                    const std::vector<StringPlan> plans = {*PlanStrings(2, {"words", ids, inverse.data()})};
                    return ExchangeStrings(communicator, "route", plans, PackStrings(communicator, plans)).status();
                  });
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("'route of 1 lookups of strings'"), HasSubstr("rank 1"),
                                      HasSubstr("4 bytes after its end")));
}

TEST(LyingRank, RowsThatNobodyHasAskedForAreRefused) {
  const std::vector<char> many(4096, 'A');
  for (const int64_t items : {0, 1, 3, 4096}) {
    const Status status =
        WithMessage("rows", {DType::kUInt8, 1}, many.data(), items, false, [](Communicator& communicator) {
          const Numbers send = {0, 0}, recv = {0, 2};
          const auto out = std::make_unique<char[]>(2);
          const Block block{send, recv, 1, nullptr, out.get()};
          return ExchangeBlocks(communicator, "rows", {&block, 1});
        });
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("'rows'"), HasSubstr("rank 1"), HasSubstr("wanted 2")));
  }
}

TEST(LyingRank, OtherRowsThanATableHasAreRefused) {
  const std::vector<char> many(4096, 'A');
  for (const int64_t items : {0, 1, 1024}) {
    const Status status =
        WithMessage("table", {DType::kUInt8, 4}, many.data(), items, true, [](Communicator& communicator) {
          const Placement placement(kRows);
          const std::vector<char> in(static_cast<size_t>(placement.LocalRows(0, 2) * 4));
          const auto out = std::make_unique<char[]>(kRows * 4);
          return GatherTable(communicator, "table", {placement, 4}, in.data(), out.get());
        });
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("'table'"), HasSubstr("rank 1"), HasSubstr("wanted 50")));
  }
}

}  // namespace
}  // namespace lockstep
