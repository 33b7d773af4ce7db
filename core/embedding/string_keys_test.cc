#include "core/embedding/string_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/testing/parallel.h"

namespace lockstep {
namespace {

// A weak hash: most strings share it with many others; from salt 3 on, strings differ.
uint64_t Weak(std::string_view bytes, uint64_t salt) {
  return salt < 3 ? bytes.size() % 7 + salt : Fingerprint(bytes, salt);
}

std::vector<std::string> RandomStrings(std::mt19937_64& random, int count) {
  std::vector<std::string> strings;
  for (int i = 0; i < count; ++i) {
    std::string text(random() % 20, '\0');
    for (char& c : text) c = static_cast<char>(random() % 3);
    strings.push_back(i % 50 == 0 ? std::string(300000, static_cast<char>(i)) : text);
  }
  return strings;
}

std::vector<std::string_view> Views(const std::vector<std::string>& strings) {
  return {strings.begin(), strings.end()};
}

TEST(StringKeys, NeverMergeTwoStrings) {
  testing::Pool pool(3);
  for (const auto fingerprint : {&Fingerprint, &Weak}) {
    std::mt19937_64 random(1);
    const auto strings = *StringKeys::Create(fingerprint);
    std::map<std::string, int64_t> expected;
    for (int round = 0; round < 30; ++round) {
      const std::vector<std::string> batch = RandomStrings(random, 300);
      std::vector<int64_t> keys(batch.size()), found(batch.size());
      ASSERT_EQ(strings->Intern(Views(batch), keys.data(), pool.Get()), OkStatus());
      strings->Find(Views(batch), found.data(), pool.Get());
      ASSERT_EQ(found, keys);
      for (size_t i = 0; i < batch.size(); ++i) ASSERT_EQ(expected.emplace(batch[i], keys[i]).first->second, keys[i]);
      std::set<int64_t> distinct;
      for (const auto& [text, key] : expected) {
        std::string bytes;
        ASSERT_TRUE(strings->Bytes(key, &bytes));
        ASSERT_EQ(bytes, text);
        distinct.insert(key);
      }
      ASSERT_EQ(distinct.size(), expected.size());
      ASSERT_EQ(strings->size(), static_cast<int64_t>(expected.size()));
      std::vector<int64_t> removed;
      for (auto next = expected.begin(); next != expected.end();) {
        if (random() % 3 != 0) {
          ++next;
          continue;
        }
        removed.push_back(next->second);
        next = expected.erase(next);
      }
      strings->Remove(removed);
    }
    // Restores into another table, in another order, under the same keys.
    const auto copy = *StringKeys::Create(fingerprint);
    for (auto next = expected.rbegin(); next != expected.rend(); ++next) {
      ASSERT_EQ(copy->Restore(next->first, next->second), OkStatus());
      ASSERT_EQ(copy->Restore(next->first, next->second), OkStatus()) << "once more";
    }
    for (const auto& [text, key] : expected) {
      const std::string_view view = text;
      int64_t found;
      copy->Find({&view, 1}, &found, RunInline);
      ASSERT_EQ(found, key);
    }
    EXPECT_EQ(copy->Restore("another", expected.begin()->second).code(), StatusCode::kInvalidArgument);
  }
}

TEST(StringKeys, FindAddsNothing) {
  const auto strings = *StringKeys::Create();
  const std::vector<std::string_view> batch = {"a", "", std::string_view("a\0b", 3)};
  std::vector<int64_t> found(3), keys(3);
  strings->Find(batch, found.data(), RunInline);
  EXPECT_EQ(strings->size(), 0);
  std::string bytes;
  EXPECT_FALSE(strings->Bytes(found[0], &bytes));
  ASSERT_EQ(strings->Intern(batch, keys.data(), RunInline), OkStatus());
  EXPECT_EQ(found, keys);
  EXPECT_EQ(keys[0], StringKeys::FirstKey("a"));
}

// The memory of strings is returned after they are removed.
TEST(StringKeys, MemoryOfRemovedStringsIsReturned) {
  const auto strings = *StringKeys::Create();
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> batch;
    for (int i = 0; i < 100; ++i) batch.push_back(std::to_string(round * 100 + i) + std::string(10000, 'x'));
    std::vector<int64_t> keys(batch.size());
    ASSERT_EQ(strings->Intern(Views(batch), keys.data(), RunInline), OkStatus());
    EXPECT_LE(strings->bytes(), 3 << 20);
    strings->Remove(keys);
  }
}

// A snapshot that began reads all strings as they were, even if another string has the key by now.
TEST(StringKeys, StayReadableInASnapshot) {
  std::mt19937_64 random(3);
  const auto strings = *StringKeys::Create(&Weak);
  std::map<std::string, int64_t> held;
  for (int round = 0; round < 20; ++round) {
    const std::map<std::string, int64_t> moment = held;
    strings->BeginSnapshot();
    for (int step = 0; step < 5; ++step) {
      const std::vector<std::string> batch = RandomStrings(random, 100);
      std::vector<int64_t> keys(batch.size());
      ASSERT_EQ(strings->Intern(Views(batch), keys.data(), RunInline), OkStatus());
      for (size_t i = 0; i < batch.size(); ++i) held[batch[i]] = keys[i];
      std::vector<int64_t> removed;
      for (const auto& [text, key] : held) {
        if (random() % 2 == 0) removed.push_back(key);
      }
      strings->Remove(removed);
      std::erase_if(held, [&](const auto& entry) { return std::ranges::count(removed, entry.second) > 0; });
      for (const auto& [text, key] : moment) {
        std::string bytes;
        ASSERT_TRUE(strings->BytesInSnapshot(key, &bytes));
        ASSERT_EQ(bytes, text);
      }
      ASSERT_EQ(strings->size(), static_cast<int64_t>(held.size()));
      for (const auto& [text, key] : held) {
        std::string bytes;
        ASSERT_TRUE(strings->Bytes(key, &bytes));
        ASSERT_EQ(bytes, text);
      }
    }
    if (round % 2 == 0) strings->EndSnapshot();
  }
}

// One string of each thousand stays for long: it must not keep the memory of the others.
TEST(StringKeys, MemoryIsThatOfTheMostAtOnce) {
  const auto strings = *StringKeys::Create();
  std::mt19937_64 random(5);
  std::deque<int64_t> stays;
  int64_t settled = 0;
  for (int round = 0; round < 4000; ++round) {
    std::vector<std::string> batch;
    for (int i = 0; i < 100; ++i) {
      batch.push_back(std::to_string(round * 100 + i) + std::string(random() % (i % 10 == 0 ? 1000 : 30), 'x'));
    }
    std::vector<int64_t> keys(batch.size());
    ASSERT_EQ(strings->Intern(Views(batch), keys.data(), RunInline), OkStatus());
    std::string bytes;
    for (size_t i = 0; i < batch.size(); ++i) {
      ASSERT_TRUE(strings->Bytes(keys[i], &bytes));
      ASSERT_EQ(bytes, batch[i]);
    }
    if (round % 10 == 0) {
      stays.push_back(keys.back());
      keys.pop_back();
    }
    if (stays.size() > 200) {
      keys.push_back(stays.front());
      stays.pop_front();
    }
    strings->Remove(keys);
    if (round == 1000) settled = strings->bytes();
  }
  EXPECT_EQ(strings->size(), 200);
  EXPECT_LE(strings->bytes(), settled * 11 / 10);
  EXPECT_LE(strings->bytes(), 1 << 20);
}

TEST(StringKeys, LongStringsThatWentTakeNoMemory) {
  const auto strings = *StringKeys::Create();
  for (int round = 0; round < 50; ++round) {
    const std::string text = std::to_string(round) + std::string(300 << 10, 'x');
    int64_t key;
    ASSERT_EQ(strings->Intern(Views({text}), &key, RunInline), OkStatus());
    strings->Remove({&key, 1});
  }
  EXPECT_LE(strings->bytes(), 2 << 20);
}

// Strings that are removed in a moment take memory until it ends, and no longer.
TEST(StringKeys, MemoryOfASnapshotIsReturned) {
  const auto strings = *StringKeys::Create();
  int64_t most = 0;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string> batch;
    for (int i = 0; i < 100; ++i) batch.push_back(std::to_string(round * 100 + i) + std::string(10000, 'x'));
    std::vector<int64_t> keys(batch.size());
    if (round == 10) strings->BeginSnapshot();
    ASSERT_EQ(strings->Intern(Views(batch), keys.data(), RunInline), OkStatus());
    strings->Remove(keys);
    most = std::max(most, strings->bytes());
  }
  EXPECT_GT(most, 8 << 20);
  strings->EndSnapshot();
  EXPECT_LE(strings->bytes(), 3 << 20);
}

// A moment is read while threads add and remove strings.
TEST(StringKeys, AreReadInASnapshotBesideChanges) {
  const auto strings = *StringKeys::Create();
  const auto text = [](int64_t number) { return "key " + std::to_string(number); };
  std::atomic<int> changing = 2;
  std::vector<std::thread> threads;
  for (int seed = 0; seed < 2; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      for (int round = 0; round < 300; ++round) {
        std::vector<std::string> batch;
        for (int i = 0; i < 50; ++i) batch.push_back(text(random() % 400));
        std::vector<int64_t> keys(batch.size());
        ASSERT_EQ(strings->Intern(Views(batch), keys.data(), RunInline), OkStatus());
        strings->Remove(std::span(keys).subspan(0, random() % 50));
      }
      --changing;
    });
  }
  while (changing > 0) {
    strings->BeginSnapshot();
    std::map<int64_t, std::string> moment;
    for (int64_t number = 0; number < 400; ++number) {
      std::string bytes;
      const int64_t key = StringKeys::FirstKey(text(number));
      if (strings->BytesInSnapshot(key, &bytes)) moment.emplace(key, bytes);
    }
    for (const auto& [key, expected] : moment) {
      std::string bytes;
      ASSERT_TRUE(strings->BytesInSnapshot(key, &bytes));
      ASSERT_EQ(bytes, expected);
    }
    strings->EndSnapshot();
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace lockstep
