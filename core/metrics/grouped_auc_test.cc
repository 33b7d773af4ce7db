#include "core/metrics/grouped_auc.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <vector>

namespace lockstep {
namespace {

// A batch of samples that owns its arrays.
struct Batch {
  std::vector<char> labels;
  std::vector<double> predictions;
  std::vector<int64_t> groups;

  Result<GroupedAuc> Compute() const {
    // vector<bool> has no array of bools.
    const auto flags = std::make_unique<bool[]>(labels.size() + 1);
    for (size_t i = 0; i < labels.size(); ++i) flags[i] = labels[i] != 0;
    return ComputeGroupedAuc({static_cast<int64_t>(labels.size()), flags.get(), predictions.data(), groups.data()});
  }
};

// The definition: counts all pairs of a positive and a negative sample in each run of equal groups.
GroupedAuc Naive(const Batch& batch) {
  GroupedAuc sum;
  for (size_t begin = 0, end = 0; begin < batch.labels.size(); begin = end) {
    while (end < batch.labels.size() && batch.groups[end] == batch.groups[begin]) ++end;
    double pairs = 0, won = 0;
    for (size_t p = begin; p < end; ++p) {
      for (size_t n = begin; n < end; ++n) {
        if (!batch.labels[p] || batch.labels[n]) continue;
        pairs += 1;
        won += batch.predictions[p] > batch.predictions[n]    ? 1.0
               : batch.predictions[p] == batch.predictions[n] ? .5
                                                              : 0;
      }
    }
    if (pairs == 0) continue;
    sum.weighted_auc += static_cast<double>(end - begin) * won / pairs;
    sum.samples += static_cast<double>(end - begin);
  }
  return sum;
}

TEST(GroupedAuc, IsTheDefinitionForRandomGroupsAndTies) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    Batch batch;
    const int64_t samples = random() % 200;
    for (int64_t i = 0; i < samples; ++i) {
      batch.labels.push_back(random() % 3 == 0);
      batch.predictions.push_back((random() % 10) / 10.0);  // many ties
      batch.groups.push_back(i > 0 && random() % 8 ? batch.groups.back() : static_cast<int64_t>(random() % 4));
    }
    const GroupedAuc wanted = Naive(batch);
    const GroupedAuc got = *batch.Compute();
    EXPECT_NEAR(got.weighted_auc, wanted.weighted_auc, 1e-9) << "seed " << seed;
    EXPECT_EQ(got.samples, wanted.samples) << "seed " << seed;
  }
}

TEST(GroupedAuc, FirstAndLastGroupCount) {
  // Three groups with AUC 1, 1 and 0, of two samples each.
  const Batch batch{{1, 0, 1, 0, 1, 0}, {.9, .1, .8, .2, .1, .9}, {7, 7, 8, 8, 9, 9}};
  EXPECT_DOUBLE_EQ(batch.Compute()->weighted_auc, 4);
  EXPECT_DOUBLE_EQ(batch.Compute()->samples, 6);
}

TEST(GroupedAuc, GroupsOfOneClassCountForNothing) {
  const Batch batch{{1, 1, 0, 0, 0, 1}, {.9, .1, .8, .2, .1, .9}, {7, 7, 8, 8, 9, 9}};
  EXPECT_DOUBLE_EQ(batch.Compute()->weighted_auc, 2);
  EXPECT_DOUBLE_EQ(batch.Compute()->samples, 2);
}

TEST(GroupedAuc, NothingOfNothing) {
  EXPECT_EQ(Batch().Compute()->weighted_auc, 0);
  EXPECT_EQ(Batch().Compute()->samples, 0);
}

TEST(GroupedAuc, NanIsRefusedByPosition) {
  const Batch batch{{1, 0}, {.5, std::nan("")}, {1, 1}};
  EXPECT_EQ(batch.Compute().status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(batch.Compute().status().message().find("sample 1 is NaN"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
