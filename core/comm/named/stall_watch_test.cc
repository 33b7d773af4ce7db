#include "core/comm/named/stall_watch.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace lockstep {
namespace {

NamedRequest Barrier(const std::string& name) {
  NamedRequest request;
  request.name = name;
  return request;
}

TEST(StallWatch, WarnsAgainAndAgainAndGivesUp) {
  Sequencer sequencer({3});
  StallWatch watch({.warning_s = 10, .timeout_s = 25});
  std::vector<std::string> warnings;
  EXPECT_EQ(watch.Look(sequencer, 0, &warnings), 2.5);
  EXPECT_TRUE(sequencer.Add(1, Barrier("x"), 1).ok());
  EXPECT_EQ(watch.Look(sequencer, 10, &warnings), 1);
  EXPECT_TRUE(warnings.empty());
  EXPECT_EQ(watch.Look(sequencer, 11, &warnings), 2.5);
  EXPECT_EQ(watch.Look(sequencer, 20, &warnings), 1);
  watch.Look(sequencer, 21, &warnings);
  EXPECT_EQ(warnings,
            (std::vector<std::string>{"barrier 'x': ranks 0 and 2 did not request it within 10 s; other ranks wait",
                                      "barrier 'x': ranks 0 and 2 did not request it within 20 s; other ranks wait"}));
  EXPECT_TRUE(sequencer.Take().empty());
  EXPECT_EQ(watch.Look(sequencer, 26, &warnings), 0);
  const std::vector<NamedBatch> batches = sequencer.Take();
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches[0].error, DeadlineExceeded("barrier 'x': ranks 0 and 2 did not request it within 25 s"));
}

TEST(StallWatch, NeverLooksWhereItHasNothingToSay) {
  Sequencer sequencer({2});
  EXPECT_TRUE(sequencer.Add(1, Barrier("x"), 1).ok());
  std::vector<std::string> warnings;
  EXPECT_EQ(StallWatch({.warning_s = {}, .timeout_s = {}}).Look(sequencer, 1000, &warnings), std::nullopt);
  EXPECT_TRUE(warnings.empty());
}

}  // namespace
}  // namespace lockstep
