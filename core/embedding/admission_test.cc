#include "core/embedding/admission.h"

#include <gtest/gtest.h>

#include <random>
#include <unordered_map>
#include <vector>

namespace lockstep {
namespace {

AdmissionOptions Bloom(int64_t frequency, int64_t keys, double false_positives) {
  return {.min_frequency = frequency, .bloom_keys = keys, .bloom_false_positives = false_positives};
}

// The numbers of DeepRec's documentation: ceil(|log2 p|) hashes, ceil(n |ln p| / ln(2)^2) counters.
TEST(CountingBloomFilter, HasDeepRecsSizes) {
  const auto filter = *CountingBloomFilter::Create(Bloom(3, 1 << 20, 0.01));
  EXPECT_EQ(filter->hashes(), 7);
  EXPECT_EQ(filter->counters(), 10050663);
  EXPECT_EQ(filter->bytes().size(), 10050663u);
  EXPECT_EQ((*CountingBloomFilter::Create(Bloom(300, 100, 0.5)))->bytes().size(), 2 * 145u);
  EXPECT_EQ((*CountingBloomFilter::Create(Bloom(70000, 100, 0.5)))->bytes().size(), 4 * 145u);
}

TEST(CountingBloomFilter, NeverCountsTooLittleAndSeldomTooMuch) {
  for (const int64_t limit : {5, 300, 70000}) {
    const auto filter = *CountingBloomFilter::Create(Bloom(limit, 5000, 0.01));
    std::mt19937_64 random(limit);
    std::unordered_map<int64_t, int64_t> counts;
    while (counts.size() < 5000) {
      const auto key = static_cast<int64_t>(random());
      const auto times = static_cast<int64_t>(1 + random() % (2 * limit));
      for (int64_t left = times; left > 0; left -= times / 2 + 1) filter->Add(key, std::min(left, times / 2 + 1));
      counts[key] = times;
    }
    int64_t wrong = 0;
    for (const auto& [key, count] : counts) {
      ASSERT_GE(filter->Count(key), std::min(count, limit));
      ASSERT_LE(filter->Count(key), limit);
      wrong += filter->Count(key) > std::min(count, limit) ? 1 : 0;
    }
    for (int i = 0; i < 5000; ++i) wrong += filter->Count(static_cast<int64_t>(random())) > 0 ? 1 : 0;
    EXPECT_LE(wrong, 10000 * 0.02);
  }
}

// The merged filters of two workers count every key at least as often as its own worker did.
TEST(CountingBloomFilter, FiltersOfWorkersAreMerged) {
  const auto options = Bloom(300, 500, 0.01);
  const auto one = *CountingBloomFilter::Create(options), two = *CountingBloomFilter::Create(options);
  for (int64_t key = 0; key < 500; ++key) (key % 2 == 0 ? one : two)->Add(key, key);
  const auto all = *CountingBloomFilter::Create(options);
  ASSERT_EQ(all->Merge(one->bytes()), OkStatus());
  ASSERT_EQ(all->Merge(two->bytes()), OkStatus());
  for (int64_t key = 0; key < 500; ++key) EXPECT_GE(all->Count(key), std::min<int64_t>(key, 300));
  EXPECT_EQ(all->Merge(one->bytes().first(10)).code(), StatusCode::kInvalidArgument);
}

TEST(AdmissionOptions, AreChecked) {
  EXPECT_EQ((AdmissionOptions{.min_frequency = -1}).Validate().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((AdmissionOptions{.min_frequency = 2, .bloom_keys = 5}).Validate().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Bloom(2, 0, 0.1).Validate().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Bloom(2, 10, 1.0).Validate().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Bloom(2, 10, 0.1).Validate(), OkStatus());
}

}  // namespace
}  // namespace lockstep
