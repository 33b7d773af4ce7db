#include "core/embedding/index.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <set>
#include <thread>
#include <unordered_map>

namespace lockstep {
namespace {

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min(), kHighest = std::numeric_limits<int64_t>::max();

// Keys of all kinds: the smallest and largest, dense ones, multiples of large powers of two, random ones.
int64_t KeyOf(std::mt19937_64& random, int64_t range) {
  static constexpr int64_t kSpecial[] = {kLowest, kLowest + 1, -2, -1, 0, 1, kHighest - 1, kHighest};
  const auto n = static_cast<int64_t>(random() % range);
  switch (n % 4) {
    case 0: return kSpecial[n / 4 % 8];
    case 1: return n;
    case 2: return n << 40;
    default: return static_cast<int64_t>(MixBits(n));
  }
}

TEST(KeyIndex, BehavesLikeAMap) {
  for (const int64_t range : {int64_t{40}, int64_t{3000}, int64_t{200000}}) {
    std::mt19937_64 random(range);
    KeyIndex index;
    std::unordered_map<int64_t, uint32_t> expected;
    for (int i = 0; i < 100000; ++i) {
      const int64_t key = KeyOf(random, range);
      const auto value = static_cast<uint32_t>(random() % 1000);
      const auto found = expected.find(key);
      switch (random() % 4) {
        case 0:
        case 1: ASSERT_EQ(index.Insert(key, value), expected.emplace(key, value).first->second); break;
        case 2: {
          const bool there = found != expected.end() && found->second == value % 8;
          ASSERT_EQ(index.Replace(key, value % 8, value), there);
          if (there) found->second = value;
          break;
        }
        default:
          ASSERT_EQ(index.Find(key), found == expected.end() ? KeyIndex::kAbsent : found->second);
          if (found == expected.end()) break;
          ASSERT_FALSE(index.Erase(key, found->second + 1)) << "another value";
          ASSERT_TRUE(index.Erase(key, found->second));
          ASSERT_FALSE(index.Erase(key, found->second));
          expected.erase(found);
      }
    }
    ASSERT_EQ(index.size(), static_cast<int64_t>(expected.size()));
    std::vector<int64_t> keys;
    for (const auto& [key, value] : expected) keys.push_back(key);
    for (int i = 0; i < 1000; ++i) keys.push_back(KeyOf(random, range));
    std::vector<uint32_t> values(keys.size());
    index.Find(keys, values.data());
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto found = expected.find(keys[i]);
      ASSERT_EQ(values[i], found == expected.end() ? KeyIndex::kAbsent : found->second);
    }
  }
}

// All keys are visited once, each in the range of its hash, regardless of the ranges.
TEST(KeyIndex, VisitsKeysByHash) {
  std::mt19937_64 random(5);
  for (const int count : {0, 1, 100, 5000}) {
    KeyIndex index;
    std::unordered_map<int64_t, uint32_t> expected;
    for (int i = 0; i < count; ++i) {
      const auto key = static_cast<int64_t>(random());
      expected[key] = i;
      index.Insert(key, i);
    }
    std::set<uint64_t> cuts = {0, std::numeric_limits<uint64_t>::max()};
    for (int i = 0; i < 200; ++i) cuts.insert(i % 2 == 0 ? random() : random() >> 58 << 58);
    std::unordered_map<int64_t, uint32_t> visited;
    for (auto begin = cuts.begin(), end = std::next(begin); end != cuts.end(); ++begin, ++end) {
      index.Visit(*begin, *end, [&](int64_t key, uint32_t value) {
        EXPECT_TRUE(visited.emplace(key, value).second) << "twice";
        EXPECT_GE(KeyIndex::HashOf(key), *begin);
        EXPECT_LT(KeyIndex::HashOf(key), *end);
      });
    }
    EXPECT_EQ(visited, expected);
  }
}

TEST(KeyIndex, TakesLittleMemory) {
  KeyIndex index;
  for (int64_t i = 0; i < 300000; ++i) {
    index.Insert(i, static_cast<uint32_t>(i));
    if (i > 10000) {
      ASSERT_LE(index.bytes(), 28 * i);
    }
  }
  // Keys that come after removals take the freed memory.
  const int64_t bytes = index.bytes();
  for (int64_t i = 300000; i < 1000000; ++i) {
    ASSERT_TRUE(index.Erase(i - 300000, static_cast<uint32_t>(i - 300000)));
    index.Insert(i, static_cast<uint32_t>(i));
  }
  EXPECT_LE(index.bytes(), bytes * 3 / 2) << "a shard may have grown once, by chance";
}

// Concurrent searches find a key with its own value or not at all, and never miss one that stays.
TEST(KeyIndex, IsSearchedWhileItChanges) {
  constexpr int64_t kStay = 2000, kCome = 20000;
  const int rounds = LOCKSTEP_SANITIZED ? 2 : 6;
  const auto value_of = [](int64_t key) { return static_cast<uint32_t>(key * 7 + 1); };
  KeyIndex index;
  for (int64_t key = 0; key < kStay; ++key) index.Insert(key, value_of(key));
  std::atomic<int> changing = 2;
  std::vector<std::thread> threads;
  for (int writer = 0; writer < 2; ++writer) {
    threads.emplace_back([&, writer] {
      for (int round = 0; round < rounds; ++round) {
        for (int64_t key = kStay + writer; key < kStay + kCome; key += 2) index.Insert(key, value_of(key));
        for (int64_t key = kStay + writer; key < kStay + kCome; key += 2) EXPECT_TRUE(index.Erase(key, value_of(key)));
      }
      --changing;
    });
  }
  for (int reader = 0; reader < 2; ++reader) {
    threads.emplace_back([&, reader] {
      std::mt19937_64 random(reader);
      while (changing > 0) {
        std::vector<int64_t> keys(512);
        for (int64_t& key : keys) key = static_cast<int64_t>(random() % (random() % 2 ? kStay : kStay + kCome));
        std::vector<uint32_t> values(keys.size());
        index.Find(keys, values.data());
        for (size_t i = 0; i < keys.size(); ++i) {
          if (values[i] == value_of(keys[i])) continue;
          ASSERT_EQ(values[i], KeyIndex::kAbsent);
          ASSERT_GE(keys[i], kStay);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(index.size(), kStay);
}

}  // namespace
}  // namespace lockstep
