#include "core/sharding/lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>

#include "core/base/float16.h"
#include "core/sharding/placement.h"
#include "core/testing/oracle.h"
#include "core/testing/thread_communicator.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A table whose elements show their row and column, so that a row from a wrong place is noticed.
struct Table {
  std::string name;
  Placement placement;
  int64_t width;

  float at(int64_t row, int64_t column) const { return static_cast<float>(row * 100 + column); }

  std::vector<float> shard(int rank, int size) const {
    std::vector<float> values;
    for (int64_t row = 0; row < placement.rows; ++row) {
      if (placement.Owner(row, size) != rank) continue;
      for (int64_t d = 0; d < width; ++d) values.push_back(at(row, d));
    }
    return values;
  }
};

// One rank's part of a lookup in several tables, step by step like the ops: a failure on one rank is declined. The
// gather between the steps is done here on the rank's shard. All results stay, for tests to examine or to damage.
struct Lookup {
  Lookup(Communicator& communicator, std::vector<Table> tables, std::vector<std::vector<int64_t>> ids)
      : communicator(communicator), tables(std::move(tables)), ids(std::move(ids)) {}

  // With kInt32 the ids are narrowed first; they fit.
  Status Route(DType dtype = DType::kInt64) {
    std::vector<LookupIds> lookups;
    std::vector<std::vector<int32_t>> narrow(tables.size());
    inverse.resize(tables.size());
    for (size_t t = 0; t < tables.size(); ++t) {
      inverse[t].resize(ids[t].size());
      narrow[t].assign(ids[t].begin(), ids[t].end());
      const void* data = dtype == DType::kInt64 ? static_cast<const void*>(ids[t].data()) : narrow[t].data();
      lookups.push_back(
          {tables[t].name, tables[t].placement, dtype, data, static_cast<int64_t>(ids[t].size()), inverse[t].data()});
    }
    splits.resize(tables.size());
    local_rows.resize(tables.size());
    const Result<RoutePlan> plan = PlanRoute(communicator.size(), lookups);
    if (!plan.ok()) return communicator.Decline("route", plan.status());
    return ExchangeRoute(communicator, "route", *plan, splits, [&](size_t lookup, int64_t count) -> Result<int64_t*> {
      local_rows[lookup].resize(count);
      return local_rows[lookup].data();
    });
  }

  // distinct: whether `out` gets a row for each distinct id of this rank.
  Status CombineRows(bool distinct = false) {
    std::vector<LookupRows> lookups;
    std::vector<std::vector<float>> rows(tables.size());
    out.resize(tables.size());
    for (size_t t = 0; t < tables.size(); ++t) {
      const std::vector<float> shard = tables[t].shard(communicator.rank(), communicator.size());
      const int64_t width = tables[t].width;
      for (int64_t row : local_rows[t]) {
        rows[t].insert(rows[t].end(), shard.begin() + row * width, shard.begin() + (row + 1) * width);
      }
      const int64_t count = distinct ? Distinct(t) : static_cast<int64_t>(ids[t].size());
      out[t].resize(count * width);
      lookups.push_back({splits[t].send, splits[t].recv, width * 4, rows[t].data(),
                         static_cast<int64_t>(local_rows[t].size()), inverse[t].data(), count, out[t].data(),
                         distinct});
    }
    if (Status status = CheckRows(communicator.size(), lookups); !status.ok()) {
      return communicator.Decline("combine", status);
    }
    return Combine(communicator, "combine", lookups);
  }

  // The number of this rank's distinct ids.
  int64_t Distinct(size_t t) const { return std::accumulate(splits[t].send.begin(), splits[t].send.end(), int64_t{0}); }

  Communicator& communicator;
  std::vector<Table> tables;
  std::vector<std::vector<int64_t>> ids;
  std::vector<std::vector<int32_t>> inverse;
  std::vector<Splits> splits;
  std::vector<std::vector<int64_t>> local_rows;
  std::vector<std::vector<float>> out;
};

// Returns `count` ids of a table, with many duplicates if it is small; none if it has no rows.
std::vector<int64_t> RandomIds(std::mt19937& random, int64_t rows, int64_t count) {
  std::vector<int64_t> ids(rows == 0 ? 0 : count);
  for (int64_t& id : ids) id = random() % rows;
  return ids;
}

// Returns the first `count` of three tables of different widths: by rows, whole on the last of `size` ranks, and by
// rows from another rank on.
std::vector<Table> Tables(size_t count, int size = 2) {
  std::vector<Table> tables = {{"user", 97, 4}, {"country", {2, 2, size - 1}, 1}, {"item", {1000, 1, size / 2}, 16}};
  tables.erase(tables.begin() + static_cast<int64_t>(count), tables.end());
  return tables;
}

// 4 ranks on 2 hosts; on the first one, ranks 0 and 1 are the relay ranks for ranks 2 and 3.
TEST(PlanRoute, GoesByWayOfCarriersAndCountsWhatTheyWereAskedFor) {
  const std::vector<int> relay_ranks = {0, 1, 0, 1};
  const std::vector<int64_t> ids = {7, 4, 6, 7, 0};
  std::vector<int32_t> inverse(ids.size());
  LookupIds lookup{"t", 10, DType::kInt64, ids.data(), 5, inverse.data()};
  lookup.relay_ranks = relay_ranks;
  const Result<RoutePlan> first = PlanRoute(4, {&lookup, 1});
  ASSERT_TRUE(first.ok());
  // Ids are unchanged and sorted by relay rank: ids of owners 0 and 2 go to rank 0.
  EXPECT_THAT(first->local_rows[0], ElementsAre(4, 6, 0, 7));
  EXPECT_THAT(first->send[0], ElementsAre(3, 1, 0, 0));
  EXPECT_THAT(inverse, ElementsAre(3, 0, 1, 3, 2));

  // Two ranks ask rank 0 for keys with counts. It sends each key with its total count to the owner.
  const std::vector<int64_t> asked = {4, 6, 6, 4, 8}, times = {1, 2, 3, 4, 5};
  lookup = {"t", std::nullopt, DType::kInt64, asked.data(), 5, inverse.data(), {}, times.data(), true};
  const Result<RoutePlan> second = PlanRoute(4, {&lookup, 1});
  ASSERT_TRUE(second.ok());
  std::map<int64_t, int64_t> counted;
  for (size_t i = 0; i < 3; ++i) counted[second->local_rows[0][2 * i]] = second->local_rows[0][2 * i + 1];
  EXPECT_EQ(counted, (std::map<int64_t, int64_t>{{4, 5}, {6, 5}, {8, 5}}));
  EXPECT_EQ(second->local_rows[0].size(), 6);
  for (const auto& [key, count] : counted) EXPECT_GT(second->send[0][KeyPlacement().Owner(key, 4)], 0);
  // A single rank in the job also gets each key once.
  ASSERT_TRUE(PlanRoute(1, {&lookup, 1}).ok());
  EXPECT_THAT(PlanRoute(1, {&lookup, 1})->local_rows[0], ElementsAre(4, 5, 6, 5, 8, 5));
}

// Each rank draws its own ids, a different number in each round, sometimes none. The oracle is Table::at, which knows
// nothing of ranks.
TEST(Lookup, GivesEveryIdItsRow) {
  for (int size : {1, 2, 3, 4}) {
    for (size_t count : {1, 3}) {
      for (DType dtype : {DType::kInt32, DType::kInt64}) {
        testing::RunOnThreads(size, [&](Communicator& communicator) {
          std::mt19937 random(31 * size + communicator.rank());
          const std::vector<Table> tables = Tables(count, size);
          for (int round = 0; round < 8; ++round) {
            std::vector<std::vector<int64_t>> ids;
            for (const Table& table : tables) ids.push_back(RandomIds(random, table.placement.rows, random() % 3 * 50));
            Lookup lookup(communicator, tables, ids);
            ASSERT_EQ(lookup.Route(dtype), OkStatus());
            ASSERT_EQ(lookup.CombineRows(), OkStatus());
            for (size_t t = 0; t < tables.size(); ++t) {
              for (size_t i = 0; i < ids[t].size() * tables[t].width; ++i) {
                ASSERT_EQ(lookup.out[t][i], tables[t].at(ids[t][i / tables[t].width], i % tables[t].width));
              }
            }
          }
        });
      }
    }
  }
}

// The way back for rows that are pooled (core/embedding/pooling.h).
TEST(Lookup, GivesEveryDistinctIdItsRow) {
  for (int size : {1, 2, 3}) {
    for (size_t count : {1, 3}) {
      testing::RunOnThreads(size, [&](Communicator& communicator) {
        std::mt19937 random(17 * size + communicator.rank());
        const std::vector<Table> tables = Tables(count, size);
        for (int round = 0; round < 8; ++round) {
          std::vector<std::vector<int64_t>> ids;
          for (const Table& table : tables) ids.push_back(RandomIds(random, table.placement.rows, random() % 3 * 50));
          Lookup lookup(communicator, tables, ids);
          ASSERT_EQ(lookup.Route(), OkStatus());
          ASSERT_EQ(lookup.CombineRows(true), OkStatus());
          for (size_t t = 0; t < tables.size(); ++t) {
            const int64_t width = tables[t].width;
            ASSERT_EQ(static_cast<int64_t>(lookup.out[t].size()), lookup.Distinct(t) * width);
            for (size_t i = 0; i < ids[t].size(); ++i) {
              ASSERT_EQ(lookup.out[t][lookup.inverse[t][i] * width], tables[t].at(ids[t][i], 0));
            }
          }
        }
      });
    }
  }
}

// Similar to the example of lookup.cc, on both ranks: 4 is rank 0's row 2; 7 and 9 are rank 1's rows 3 and 4.
TEST(Lookup, SendsEachIdOnce) {
  testing::RunOnThreads(2, [](Communicator& communicator) {
    Lookup lookup(communicator, Tables(1), {{7, 4, 7, 7, 9, 4}});
    ASSERT_EQ(lookup.Route(), OkStatus());
    EXPECT_THAT(lookup.splits[0].send, ElementsAre(1, 2));
    EXPECT_THAT(lookup.inverse[0], ElementsAre(1, 0, 1, 1, 2, 0));
    if (communicator.rank() == 0) {
      EXPECT_THAT(lookup.local_rows[0], ElementsAre(2, 2));
    } else {
      EXPECT_THAT(lookup.local_rows[0], ElementsAre(3, 4, 3, 4));
    }
  });
}

// A message read with a wrong number of lookups would be read beyond its end.
TEST(Lookup, RanksWithDifferentNumbersOfLookupsAreToldBeforeAnythingIsRead) {
  for (size_t least : {1, 2}) {
    testing::RunOnThreads(2, [&](Communicator& communicator) {
      const size_t count = least + communicator.rank();
      Lookup lookup(communicator, Tables(count), std::vector<std::vector<int64_t>>(count, {0, 1}));
      EXPECT_EQ(lookup.Route().code(), StatusCode::kFailedPrecondition);
      Lookup next(communicator, Tables(2), {{0, 1}, {0, 1}});
      EXPECT_EQ(next.Route(), OkStatus());
    });
  }
}

// Only the last rank has a bad id: just beyond the end, negative, or beyond 32 bits. All ranks get an error that names
// it, and no rank is left waiting in the exchange.
TEST(Lookup, AnIdOutOfRangeIsEveryRanksErrorAndTheNextLookupWorks) {
  for (int64_t bad : {int64_t{97}, int64_t{-1}, int64_t{1} << 40}) {
    for (int size : {1, 2, 3}) {
      testing::RunOnThreads(size, [&](Communicator& communicator) {
        const bool culprit = communicator.rank() == size - 1;
        Lookup lookup(communicator, Tables(1), {culprit ? std::vector<int64_t>{3, bad} : std::vector<int64_t>{3, 4}});
        const Status status = lookup.Route();
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
        EXPECT_THAT(status.message(),
                    AllOf(HasSubstr("rank " + std::to_string(size - 1)), HasSubstr("'user'"),
                          HasSubstr("id " + std::to_string(bad) + " at position 1"), HasSubstr("[0, 97)")));
        Lookup next(communicator, Tables(1), {{3, 4}});
        EXPECT_EQ(next.Route(), OkStatus());
        EXPECT_EQ(next.CombineRows(), OkStatus());
      });
    }
  }
}

// A wrongly rewritten graph might pass this to combine: an index beyond the distinct ids, or a row too few.
TEST(Lookup, RowsThatDontFitTheRouteAreEveryRanksError) {
  testing::RunOnThreads(2, [](Communicator& communicator) {
    for (const bool bad_inverse : {false, true}) {
      Lookup lookup(communicator, Tables(1), {{1, 2, 3}});
      ASSERT_EQ(lookup.Route(), OkStatus());
      if (communicator.rank() == 0) {
        if (bad_inverse)
          lookup.inverse[0][1] = 3;
        else
          lookup.local_rows[0].pop_back();
      }
      const Status status = lookup.CombineRows();
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(status.message(), HasSubstr("rank 0: "));
    }
  });
}

// Makes the gradient step like the op.
Status Exchange(Communicator& communicator, std::span<const LookupGradient> lookups) {
  const Result<GradientSums> sums = SumGradients(communicator, lookups);
  if (!sums.ok()) return communicator.Decline("gradient", sums.status());
  return ExchangeGradients(communicator, "gradient", lookups, *sums);
}

// Returns the gradient of every row at its owner, added in the order of TensorFlow's sparse updates: the order of
// `served`, which makes the sums repeatable.
template <typename T>
std::vector<T> OwnersSums(Lookup& lookup, size_t t, const std::vector<T>& served) {
  const Table& table = lookup.tables[t];
  const int64_t local = table.placement.LocalRows(lookup.communicator.rank(), lookup.communicator.size());
  std::vector<T> sums(local * table.width, 0);
  for (size_t m = 0; m < lookup.local_rows[t].size(); ++m) {
    for (int64_t d = 0; d < table.width; ++d) {
      sums[lookup.local_rows[t][m] * table.width + d] += served[m * table.width + d];
    }
  }
  return sums;
}

// The oracle adds in float, in the same order: per rank the ids in order, then the ranks in order. The bits must be
// equal.
TEST(Gradient, OfEachRowIsTheSumOverRanksInRankOrder) {
  for (int size : {1, 2, 4}) {
    for (size_t count : {1, 3}) {
      const std::vector<Table> tables = Tables(count, size);
      // The ids and the returned gradients of every rank; the oracle sees them all.
      std::vector<std::vector<std::vector<int64_t>>> ids(size);
      std::vector<std::vector<std::vector<float>>> gradients(size);
      std::mt19937 random(5 + size);
      std::normal_distribution<float> normal;
      for (int rank = 0; rank < size; ++rank) {
        for (const Table& table : tables) {
          ids[rank].push_back(RandomIds(random, table.placement.rows, random() % 3 * 60));
          gradients[rank].emplace_back(ids[rank].back().size() * table.width);
          for (float& value : gradients[rank].back()) value = normal(random);
        }
      }
      testing::RunOnThreads(size, [&](Communicator& communicator) {
        const int rank = communicator.rank();
        Lookup lookup(communicator, tables, ids[rank]);
        ASSERT_EQ(lookup.Route(), OkStatus());
        std::vector<std::vector<float>> served(count);
        std::vector<LookupGradient> lookups;
        for (size_t t = 0; t < count; ++t) {
          served[t].resize(lookup.local_rows[t].size() * tables[t].width);
          lookups.push_back({lookup.splits[t].send, lookup.splits[t].recv, DType::kFloat32, tables[t].width,
                             gradients[rank][t].data(), lookup.inverse[t].data(),
                             static_cast<int64_t>(ids[rank][t].size()), served[t].data()});
        }
        ASSERT_EQ(Exchange(communicator, lookups), OkStatus());

        for (size_t t = 0; t < count; ++t) {
          const int64_t width = tables[t].width;
          std::map<std::pair<int64_t, int64_t>, float> expected;
          for (int r = 0; r < size; ++r) {
            std::map<std::pair<int64_t, int64_t>, float> of_rank;
            for (size_t i = 0; i < gradients[r][t].size(); ++i) {
              const auto [entry, is_new] = of_rank.try_emplace({ids[r][t][i / width], i % width}, 0);
              entry->second += gradients[r][t][i];
            }
            for (const auto& [place, value] : of_rank) expected[place] += value;
          }
          const std::vector<float> sums = OwnersSums(lookup, t, served[t]);
          for (size_t i = 0; i < sums.size(); ++i) {
            const int64_t row = tables[t].placement.GlobalRow(i / width, rank, size);
            ASSERT_EQ(sums[i], (expected[{row, i % width}])) << "bit for bit";
          }
        }
      });
    }
  }
}

// One id has five sixths of all places, as the most frequent ids of real data have.
TEST(Gradient, OfAFrequentRowIsAddedInBlocks) {
  constexpr int64_t kIds = 1500, kWidth = 3;
  testing::RunOnThreads(2, [](Communicator& communicator) {
    std::mt19937 random(communicator.rank());
    std::normal_distribution<float> normal;
    std::vector<int64_t> ids(kIds);
    std::vector<float> gradient(kIds * kWidth);
    for (int64_t& id : ids) id = random() % 6 == 0 ? 1 + random() % 30 : 7;
    for (float& value : gradient) value = normal(random);
    Lookup lookup(communicator, {{"user", 40, kWidth}}, {ids});
    ASSERT_EQ(lookup.Route(), OkStatus());
    std::vector<float> served(kWidth * lookup.local_rows[0].size());
    const LookupGradient one{lookup.splits[0].send,
                             lookup.splits[0].recv,
                             DType::kFloat32,
                             kWidth,
                             gradient.data(),
                             lookup.inverse[0].data(),
                             kIds,
                             served.data()};
    const Result<GradientSums> sums = SumGradients(communicator, {&one, 1});
    ASSERT_EQ(sums.status(), OkStatus());
    const auto* const got = reinterpret_cast<const float*>(sums->sums[0]->data());
    const auto most = static_cast<int32_t>(lookup.inverse[0][std::find(ids.begin(), ids.end(), 7) - ids.begin()]);
    for (int32_t row = 0; row < 31; ++row) {
      for (int64_t d = 0; d < kWidth; ++d) {
        std::vector<float> terms;
        for (int64_t i = 0; i < kIds; ++i) {
          if (lookup.inverse[0][i] == row) terms.push_back(gradient[i * kWidth + d]);
        }
        if (terms.empty()) continue;
        EXPECT_EQ(got[row * kWidth + d], testing::NaiveBlockSum(terms)) << "row " << row;
        EXPECT_EQ(terms.size() > 4 * 256, row == most);
      }
    }
    ASSERT_EQ(communicator.Barrier("end"), OkStatus());
  });
}

TEST(Gradient, OfSixteenBitsIsSummedInFloat) {
  testing::RunOnThreads(2, [](Communicator& communicator) {
    Lookup lookup(communicator, {{"half", 4, 1}}, {{1, 1, 1}});
    ASSERT_EQ(lookup.Route(), OkStatus());
    // 2048 + 1 is 2048 in float16: a sum in 16 bits would lose the ones.
    const std::vector<uint16_t> gradient = {FloatToFloat16(2048), FloatToFloat16(1), FloatToFloat16(1)};
    std::vector<uint16_t> served(lookup.local_rows[0].size());
    const LookupGradient one{
        lookup.splits[0].send, lookup.splits[0].recv, DType::kFloat16, 1, gradient.data(), lookup.inverse[0].data(), 3,
        served.data()};
    ASSERT_EQ(Exchange(communicator, {&one, 1}), OkStatus());
    for (uint16_t value : served) EXPECT_EQ(Float16ToFloat(value), 2050);
    EXPECT_EQ(served.size(), communicator.rank() == 1 ? 2u : 0u);
  });
}

// Gradients that are sums already are sent unchanged.
TEST(Gradient, OfDistinctIdsIsSentAsItIs) {
  testing::RunOnThreads(2, [](Communicator& communicator) {
    const std::vector<std::vector<int64_t>> ids = {{7, 4, 7}, {4}};
    Lookup lookup(communicator, {{"user", 10, 1}, {"other", 10, 1}}, ids);
    ASSERT_EQ(lookup.Route(), OkStatus());
    const float own = static_cast<float>(communicator.rank() + 1);
    const std::vector<float> pooled = {own, own * 10}, other = {own * 100};  // of ids 4 and 7, by owner; of id 4
    std::vector<std::vector<float>> served(2);
    std::vector<LookupGradient> lookups;
    for (size_t t = 0; t < 2; ++t) {
      served[t].assign(lookup.local_rows[t].size(), -1);
      lookups.push_back({lookup.splits[t].send, lookup.splits[t].recv, DType::kFloat32, 1,
                         (t == 0 ? pooled : other).data(), lookup.inverse[t].data(), t == 0 ? 2 : 1, served[t].data(),
                         t == 0});
    }
    ASSERT_EQ(Exchange(communicator, lookups), OkStatus());
    EXPECT_EQ(served[0], communicator.rank() == 0 ? std::vector<float>({1, 2}) : std::vector<float>({10, 20}));
    EXPECT_EQ(served[1], communicator.rank() == 0 ? std::vector<float>({100, 200}) : std::vector<float>());
    // A single lookup is sent without being packed.
    served[0].assign(served[0].size(), -1);
    ASSERT_EQ(Exchange(communicator, std::span(lookups).first(1)), OkStatus());
    EXPECT_EQ(served[0], communicator.rank() == 0 ? std::vector<float>({1, 2}) : std::vector<float>({10, 20}));

    lookups[0].count = 3;
    const Status status = Exchange(communicator, lookups);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("got 3 rows; the route has 2 distinct ids"));
  });
}

// Code after a lookup may use only some of its rows. The owner gets a row for each requested one; rows without a
// gradient must be zero, and not the buffer's old content.
TEST(Gradient, OfARowThatOnlyTheLookupTouchedIsZero) {
  testing::RunOnThreads(2, [](Communicator& communicator) {
    Lookup lookup(communicator, {{"user", 4, 1}}, {{1, 3}});
    ASSERT_EQ(lookup.Route(), OkStatus());
    // Only the second id has a gradient, because only its row was used.
    const std::vector<float> gradient = {5};
    std::vector<float> served(lookup.local_rows[0].size(), -1);
    const LookupGradient one{lookup.splits[0].send,
                             lookup.splits[0].recv,
                             DType::kFloat32,
                             1,
                             gradient.data(),
                             lookup.inverse[0].data() + 1,
                             1,
                             served.data()};
    ASSERT_EQ(Exchange(communicator, {&one, 1}), OkStatus());
    EXPECT_EQ(served, communicator.rank() == 1 ? std::vector<float>({0, 5, 0, 5}) : std::vector<float>());
  });
}

// Two runs of two gradients each, with other numbers between them.
TEST(Gradient, OfRunsIsReadWhereItIs) {
  testing::RunOnThreads(2, [](Communicator& communicator) {
    Lookup lookup(communicator, {{"user", 4, 2}}, {{1, 3, 3, 1}});
    ASSERT_EQ(lookup.Route(), OkStatus());
    const std::vector<float> gradient = {1, 2, 3, 4, -9, -9, -9, 5, 6, 7, 8};
    std::vector<float> served(2 * lookup.local_rows[0].size());
    LookupGradient one{
        lookup.splits[0].send, lookup.splits[0].recv, DType::kFloat32, 2, gradient.data(), lookup.inverse[0].data(), 4,
        served.data()};
    one.run = 2;
    one.stride = 7;
    ASSERT_EQ(Exchange(communicator, {&one, 1}), OkStatus());
    EXPECT_EQ(served,
              communicator.rank() == 1 ? std::vector<float>({8, 10, 8, 10, 8, 10, 8, 10}) : std::vector<float>());
    one.distinct = true;
    one.count = 2;
    EXPECT_THAT(Exchange(communicator, {&one, 1}).message(), HasSubstr("have to be contiguous"));
  });
}

// Refused before anything is exchanged, and declined, so that both ranks get the error.
TEST(Gradient, OfIntegersIsRefused) {
  testing::RunOnThreads(2, [](Communicator& communicator) {
    const std::vector<int64_t> none = {0, 0};
    const LookupGradient one{none, none, DType::kInt32, 1, nullptr, nullptr, 0, nullptr};
    const Status status = Exchange(communicator, {&one, 1});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("int32"));
  });
}

constexpr KeyPlacement kRemainder{KeyPlacement::Kind::kRemainder};

KeyPlacement OnRank(int rank) { return {KeyPlacement::Kind::kOneRank, rank}; }

// Keys of a dynamic table: every distinct key goes to one owner, once from each rank that asks, with its count. A table
// of rows is part of the same exchange.
void ExpectKeysAtTheirOwners(const KeyPlacement& placement) {
  for (const int size : {1, 2, 3}) {
    if (!placement.Check(size).ok()) continue;
    std::vector<std::vector<int64_t>> asked(size), served(size);
    std::vector<Splits> splits(size);
    testing::RunOnThreads(size, [&](Communicator& communicator) {
      const int rank = communicator.rank();
      std::mt19937_64 random(rank);
      for (int i = 0; i < 200; ++i) asked[rank].push_back(static_cast<int64_t>(random() % 40 - 20) << 55);
      std::vector<int64_t> rows = {5, 4, 5};
      std::vector<int32_t> inverse(asked[rank].size()), inverse_of_rows(rows.size());
      const LookupIds lookups[] = {
          {"keys", std::nullopt, DType::kInt64, asked[rank].data(), 200, inverse.data(), {}, {}, true, placement},
          {"rows", 6, DType::kInt64, rows.data(), 3, inverse_of_rows.data()},
      };
      const Result<RoutePlan> plan = PlanRoute(size, lookups);
      ASSERT_EQ(plan.status(), OkStatus());
      std::vector<Splits> both(2);
      std::vector<int64_t> local_rows;
      EXPECT_EQ(ExchangeRoute(communicator, "route", *plan, both,
                              [&](size_t lookup, int64_t count) -> Result<int64_t*> {
                                std::vector<int64_t>& out = lookup == 0 ? served[rank] : local_rows;
                                out.resize(count * (lookup == 0 ? 2 : 1));
                                return out.data();
                              }),
                OkStatus());
      splits[rank] = both[0];
    });
    std::map<int64_t, int64_t> expected, got;
    for (const auto& keys : asked) {
      for (const int64_t key : keys) ++expected[key];
    }
    for (int rank = 0; rank < size; ++rank) {
      for (size_t i = 0; i < served[rank].size(); i += 2) {
        EXPECT_EQ(placement.Owner(served[rank][i], size), rank);
        got[served[rank][i]] += served[rank][i + 1];
      }
    }
    EXPECT_EQ(got, expected);
  }
}

TEST(Lookup, KeysOfDynamicTablesTravelAsTheyAre) {
  for (const KeyPlacement& placement : {KeyPlacement(), kRemainder, OnRank(0), OnRank(2)}) {
    SCOPED_TRACE(placement.number());
    ExpectKeysAtTheirOwners(placement);
  }
}

// 4 ranks on 2 hosts; ranks 0 and 1 relay for the owners 2 and 3.
TEST(PlanRoute, KeysGoToTheRelayRankOfTheirOwner) {
  const std::vector<int> relay_ranks = {0, 1, 0, 1};
  const std::vector<int32_t> keys = {-1, 5, 2, -4};
  std::vector<int32_t> inverse(keys.size());
  LookupIds lookup{"t", std::nullopt, DType::kInt32, keys.data(), 4, inverse.data(), relay_ranks};
  lookup.key_placement = kRemainder;
  EXPECT_THAT(PlanRoute(4, {&lookup, 1})->local_rows[0], ElementsAre(2, -4, -1, 5)) << "owners 2 0 | 3 1";
  EXPECT_THAT(inverse, ElementsAre(2, 3, 0, 1));
  lookup.key_placement = OnRank(3);
  EXPECT_THAT(PlanRoute(4, {&lookup, 1})->send[0], ElementsAre(0, 4, 0, 0));
}

TEST(PlanRoute, KeysOnARankOutsideOfTheJobAreRefused) {
  const int64_t key = 7;
  int32_t inverse = 0;
  LookupIds lookup{"user", std::nullopt, DType::kInt64, &key, 1, &inverse};
  lookup.key_placement = OnRank(2);
  for (const int size : {1, 2}) {
    const Status status = PlanRoute(size, {&lookup, 1}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), "table 'user': its keys are on rank 2; the job has " + std::to_string(size) + " ranks");
  }
}

}  // namespace
}  // namespace lockstep
