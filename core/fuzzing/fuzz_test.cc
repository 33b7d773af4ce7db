#include "core/fuzzing/fuzz.h"

#include <gtest/gtest.h>

#include <set>

namespace lockstep::fuzzing {
namespace {

TEST(Mutate, GivesTheSameInputsAgainAndHardlyOneTwice) {
  const std::vector<std::string> seeds = {std::string(200, 'a'), "", "b"};
  std::set<std::string> seen;
  int others = 0;
  for (uint64_t number = 0; number < 1000; ++number) {
    const std::string input = Mutate(seeds, 7, number, 300);
    EXPECT_EQ(input, Mutate(seeds, 7, number, 300));
    EXPECT_LE(input.size(), 300u);
    seen.insert(input);
    others += input != Mutate(seeds, 8, number, 300);
  }
  EXPECT_GT(seen.size(), 500u);
  EXPECT_GT(others, 500);
}

TEST(Take, GivesNumbersBelowTheEndAndZerosBehindTheLastByte) {
  std::string_view bytes = "\x05\x01\x02";
  EXPECT_EQ(Take(&bytes, 3), 2u);
  EXPECT_EQ(Take(&bytes, 1000), 0x201u);
  EXPECT_EQ(Take(&bytes, 3), 0u);
}

TEST(RequireDeathTest, EndsTheProcess) { EXPECT_DEATH(Require(false, "one is two"), "one is two"); }

}  // namespace
}  // namespace lockstep::fuzzing
