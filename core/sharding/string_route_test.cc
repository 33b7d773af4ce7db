#include "core/sharding/string_route.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "core/base/parallel.h"
#include "core/embedding/string_keys.h"
#include "core/sharding/lookup.h"
#include "core/sharding/placement.h"
#include "core/testing/thread_communicator.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Ids = std::vector<std::vector<std::string>>;  // for each lookup

// All strings except the empty one have one of two fingerprints: nearly all collide, and some owners have several.
uint64_t Weak(std::string_view bytes, uint64_t salt) { return bytes.empty() ? 17 : bytes.size() % 2 + 1000 * salt; }

// One rank's part of a route of several lookups, made like the op. Then every owner answers with `answer` of a string,
// and Combine returns it.
struct Route {
  Route(Communicator& communicator, Ids strings, StringFingerprint fingerprint = &Fingerprint)
      : communicator(communicator), ids(std::move(strings)), fingerprint(fingerprint), inverse(ids.size()) {}

  Status Run() {
    for (size_t l = 0; l < ids.size(); ++l) {
      const std::vector<std::string_view> views(ids[l].begin(), ids[l].end());
      inverse[l].resize(views.size());
      Result<StringPlan> plan = PlanStrings(communicator.size(), {"words", views, inverse[l].data()}, fingerprint);
      if (!plan.ok()) return communicator.Decline("route", plan.status());
      plans.push_back(*std::move(plan));
    }
    const StringMessage message = PackStrings(communicator, plans);
    LOCKSTEP_ASSIGN_OR_RETURN(served, ExchangeStrings(communicator, "route", plans, message));
    return OkStatus();
  }

  // Returns one int64 for each id of lookup `l`, from the answers of the strings' owners.
  std::vector<int64_t> Combined(size_t l, const std::vector<int64_t>& rows) {
    std::vector<int64_t> out(ids[l].size());
    const LookupRows lookup{plans[l].send,
                            served.lookups[l].recv,
                            8,
                            rows.data(),
                            static_cast<int64_t>(rows.size()),
                            inverse[l].data(),
                            static_cast<int64_t>(ids[l].size()),
                            out.data()};
    EXPECT_EQ(CheckRows(communicator.size(), {&lookup, 1}), OkStatus());
    EXPECT_EQ(Combine(communicator, "combine", {&lookup, 1}), OkStatus());
    return out;
  }

  Communicator& communicator;
  Ids ids;
  StringFingerprint fingerprint;
  std::vector<std::vector<int32_t>> inverse;
  std::vector<StringPlan> plans;
  ServedStrings served;
};

// Returns strings of many lengths, with any bytes, including zeros and the empty string; few enough to repeat.
std::string RandomString(std::mt19937& random) {
  const int64_t lengths[] = {0, 1, 2, 7, 8, 9, 31, 3000};
  std::mt19937 bytes(random() % 40);
  std::string string(lengths[bytes() % 8], '\0');
  for (char& c : string) c = static_cast<char>(bytes() % 5 == 0 ? 0 : bytes());
  return string;
}

Ids RandomIds(std::mt19937& random, size_t lookups) {
  Ids ids(lookups);
  for (std::vector<std::string>& of_lookup : ids) {
    of_lookup.resize(random() % 3 * 60);
    for (std::string& id : of_lookup) id = RandomString(random);
  }
  return ids;
}

// The owners number each string by a plain map, as a table numbers rows, and answer with owner and number. So the same
// string has the same answer on all ranks and in all rounds, and no two strings share one.
TEST(StringRoute, EveryStringHasOneOwnerAndComesBackAsItself) {
  for (StringFingerprint fingerprint : {&Fingerprint, &Weak}) {
    for (int size : {1, 2, 3, 4}) {
      for (size_t lookups : {1, 3}) {
        std::vector<std::map<std::string, int64_t>> answers(size);
        testing::RunOnThreads(size, [&](Communicator& communicator) {
          std::mt19937 random(17 * size + communicator.rank());
          std::map<std::string, int64_t> table;
          for (int round = 0; round < 6; ++round) {
            Route route(communicator, RandomIds(random, lookups), fingerprint);
            ASSERT_EQ(route.Run(), OkStatus());
            for (size_t l = 0; l < lookups; ++l) {
              std::vector<int64_t> rows;
              for (std::string_view string : route.served.lookups[l].strings) {
                const auto next = static_cast<int64_t>(table.size());
                const int64_t number = table.emplace(string, next).first->second;
                rows.push_back(number * size + communicator.rank());
              }
              const std::vector<int64_t> got = route.Combined(l, rows);
              for (size_t i = 0; i < got.size(); ++i) {
                const auto [seen, is_new] = answers[communicator.rank()].emplace(route.ids[l][i], got[i]);
                ASSERT_EQ(seen->second, got[i]);
              }
            }
          }
        });
        std::map<std::string, int64_t> all;
        std::map<int64_t, std::string> back;
        for (const auto& of_rank : answers) {
          for (const auto& [string, answer] : of_rank) {
            EXPECT_EQ(all.emplace(string, answer).first->second, answer) << "all ranks agree";
            EXPECT_EQ(back.emplace(answer, string).first->second, string) << "no two strings are one";
            if (fingerprint == &Fingerprint) {
              EXPECT_EQ(answer % size, KeyPlacement().OwnerOfString(string, size));
            }
          }
        }
      }
    }
  }
}

// "bb" and "dd" share a fingerprint, on one rank and on different ranks. The owner tells them apart by their bytes.
TEST(StringRoute, StringsOfOneFingerprintGetKeysOfTheirOwn) {
  std::map<std::string, int64_t> keys[2];
  testing::RunOnThreads(2, [&](Communicator& communicator) {
    const Result<std::unique_ptr<StringKeys>> strings = StringKeys::Create(&Weak);
    const std::vector<std::string> own = communicator.rank() == 0 ? std::vector<std::string>{"bb", "dd", "bb", ""}
                                                                  : std::vector<std::string>{"dd", "ff", "e", "bb"};
    Route route(communicator, {own}, &Weak);
    ASSERT_EQ(route.Run(), OkStatus());
    const ServedStrings::Lookup& served = route.served.lookups[0];
    std::vector<int64_t> rows(served.strings.size());
    ASSERT_EQ((*strings)->Intern(served.strings, rows.data(), RunInline), OkStatus());
    const std::vector<int64_t> got = route.Combined(0, rows);
    for (size_t i = 0; i < got.size(); ++i) keys[communicator.rank()].emplace(own[i], got[i]);
    EXPECT_EQ(route.plans[0].strings.size(), communicator.rank() == 0 ? 3 : 4);
  });
  EXPECT_EQ(keys[0]["bb"], keys[1]["bb"]);
  EXPECT_EQ(keys[0]["dd"], keys[1]["dd"]);
  EXPECT_NE(keys[0]["bb"], keys[0]["dd"]);
  EXPECT_NE(keys[1]["ff"], keys[1]["bb"]);
  EXPECT_NE(keys[1]["ff"], keys[1]["dd"]);
}

TEST(StringRoute, SendsEachStringOnceAndHowOftenItWasThere) {
  testing::RunOnThreads(2, [](Communicator& communicator) {
    Route route(communicator, {{"a", "\xC3\xBC", "a", "", "a", ""}});
    ASSERT_EQ(route.Run(), OkStatus());
    const ServedStrings::Lookup& served = route.served.lookups[0];
    std::map<std::string, std::vector<int64_t>> times;
    for (size_t m = 0; m < served.strings.size(); ++m) {
      times[std::string(served.strings[m])].push_back(served.times[m]);
    }
    const std::map<std::string, std::vector<int64_t>> all = {{"a", {3, 3}}, {"\xC3\xBC", {1, 1}}, {"", {2, 2}}};
    std::map<std::string, std::vector<int64_t>> own;
    for (const auto& [string, of_string] : all) {
      if (KeyPlacement().OwnerOfString(string, 2) == communicator.rank()) own[string] = of_string;
    }
    EXPECT_EQ(times, own);
    EXPECT_EQ(route.plans[0].strings.size(), 3);
    EXPECT_THAT(served.recv, ElementsAre(own.size(), own.size()));
  });
}

TEST(PlanStrings, GoesByWayOfCarriersAndCountsWhatTheyWereAskedFor) {
  const std::vector<std::string_view> ids = {"a", "b", "a", "c"};
  const std::vector<int> relay_ranks = {1, 1, 0};
  const std::vector<int64_t> times = {2, 3, int64_t{1} << 32, 4};
  std::vector<int32_t> inverse(ids.size());
  const Result<StringPlan> plan = PlanStrings(3, {"t", ids, inverse.data(), relay_ranks, times.data()});
  ASSERT_TRUE(plan.ok());
  const std::map<std::string_view, uint32_t> wanted = {{"a", UINT32_MAX}, {"b", 3}, {"c", 4}};
  std::vector<int64_t> send(3);
  for (size_t u = 0; u < plan->strings.size(); ++u) {
    EXPECT_EQ(plan->times[u], wanted.at(plan->strings[u]));
    ++send[relay_ranks[KeyPlacement().OwnerOfString(plan->strings[u], 3)]];
  }
  EXPECT_EQ(plan->strings.size(), 3);
  EXPECT_EQ(plan->send, send);
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(plan->strings[inverse[i]], ids[i]);
}

TEST(PlanStrings, OneRankGetsAllAndRemaindersAreRefused) {
  const std::vector<std::string_view> ids = {"a", "b", "a"};
  std::vector<int32_t> inverse(ids.size());
  StringLookup lookup{"t", ids, inverse.data()};
  lookup.placement = {KeyPlacement::Kind::kOneRank, 1};
  EXPECT_THAT(PlanStrings(3, lookup)->send, ElementsAre(0, 2, 0));
  const std::vector<int> relay_ranks = {0, 2, 2};
  lookup.relay_ranks = relay_ranks;
  EXPECT_THAT(PlanStrings(3, lookup)->send, ElementsAre(0, 0, 2));
  EXPECT_EQ(PlanStrings(1, lookup).status().message(), "table 't': its keys are on rank 1; the job has 1 ranks");
  lookup.placement = {KeyPlacement::Kind::kRemainder};
  const Status status = PlanStrings(3, lookup).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("table 't'"), HasSubstr("no remainder")));
}

TEST(StringRoute, RanksWithDifferentNumbersOfLookupsAreToldBeforeAnythingIsRead) {
  testing::RunOnThreads(2, [](Communicator& communicator) {
    Route route(communicator, Ids(1 + communicator.rank(), {"a", "b"}));
    EXPECT_EQ(route.Run().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(Route(communicator, {{"a"}}).Run(), OkStatus());
  });
}

// The length is checked first, so the missing bytes are not read.
TEST(StringRoute, AStringThatIsTooLongIsRefused) {
  const std::vector<std::string_view> ids = {"a", std::string_view("b", size_t{1} << 32)};
  std::vector<int32_t> inverse(2);
  const Status status = PlanStrings(2, {"words", ids, inverse.data()}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("'words'"), HasSubstr("position 1"), HasSubstr("4294967296 bytes")));
}

TEST(StringRoute, ARankThatIsAskedForNothingGetsNothing) {
  testing::RunOnThreads(3, [](Communicator& communicator) {
    std::vector<StringPlan> plans(2);
    plans[0] = {{"abc"}, {1}, {0, 1, 0}};
    plans[1] = {{"d", "e"}, {1, 2}, {0, 1, 1}};
    const StringMessage message = PackStrings(communicator, plans);
    EXPECT_EQ(message.bytes[0], 0);
    const Result<ServedStrings> served = ExchangeStrings(communicator, "route", plans, message);
    ASSERT_EQ(served.status(), OkStatus());
    const int64_t asked = communicator.rank() == 0 ? 0 : 1;
    EXPECT_THAT(served->lookups[0].recv, Each(communicator.rank() == 1 ? 1 : 0));
    EXPECT_THAT(served->lookups[1].recv, Each(asked));
  });
}

// A message is shorter than its own lengths say, as from a rank that runs another program.
TEST(StringRoute, AMessageThatEndsEarlyIsAnErrorAndNotReadBeyond) {
  testing::RunOnThreads(2, [](Communicator& communicator) {
    std::vector<StringPlan> plans(1);
    plans[0] = {{"abc", "defgh"}, {1, 1}, {1, 1}};
    for (int64_t cut = 1; cut < PackStrings(communicator, plans).bytes[1]; ++cut) {
      StringMessage message = PackStrings(communicator, plans);
      message.bytes[1] -= cut;
      const Status status = ExchangeStrings(communicator, "route", plans, message).status();
      EXPECT_EQ(status.code(), communicator.rank() == 1 ? StatusCode::kDataLoss : StatusCode::kOk);
      if (status.ok()) continue;
      EXPECT_THAT(status.message(), AllOf(HasSubstr("route"), HasSubstr("rank 0 announces")));
    }
  });
}

}  // namespace
}  // namespace lockstep
