#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/base/hash.h"
#include "core/base/prefetch.h"
#include "core/embedding/epochs.h"
#include "core/embedding/pages.h"

namespace lockstep {

// A concurrent hash index: int64 key -> 32-bit value, which is the number of a row. Any key is legal.
//
//   index    64 shards, by the first 6 bits of a key's hash; each has its array of buckets and grows alone
//   array    8, 12, 16, 24, ... buckets; a key's home is where its hash lies in proportion, so buckets of an array are
//            in the order of the hashes (but for keys that overflowed), whatever its length. Arrays of one length lie
//            side by side in large pages, since all shards grow at about the same time
//   bucket   one cache line of 5 entries:
//
//              state   4 bytes   which entries are taken (5 bits) | how many keys passed by (8) | removals (19)
//              values  5 x 4
//              keys    5 x 8
//
// A key that finds its home full goes to the next bucket that has room, and is counted in all that it passed: a search
// ends at the first bucket that nobody passed. Nearly all take one cache line. A shard grows by a third or a half when
// more than 3/4 of its entries are taken: 17 to 26 bytes a key, and 1/64 more while one grows.
//
// Threads. Searches take no lock and wait for nobody: entries are published by their bucket's state, and one that was
// removed and taken again while it was read shows in the count of removals (which would have to wrap around, 524,288
// removals from one bucket between two loads, to be missed). Changes lock their shard. Growth copies a shard while it
// is searched; its old array is freed when the searches that may look at it have ended, which is what a ReadGuard
// tells. What is found is what was true at some moment during the search. Thread-safe.
//
// There is no virtual call, no allocation and no lock for a key that is searched; a caller overlaps the cache misses of
// many keys by locating all of them before it looks at the first:
//
//   const KeyIndex::ReadGuard guard = index.Read();
//   KeyIndex::Place places[KeyIndex::kGroup];
//   for (int i = 0; i < n; ++i) places[i] = index.Locate(keys[i]);    // prefetches
//   for (int i = 0; i < n; ++i) values[i] = KeyIndex::Find(places[i], keys[i]);
class KeyIndex {
 public:
  // What Find gives for a key that is not there; no key has it for a value.
  static constexpr uint32_t kAbsent = 0xFFFFFFFF;
  // How many keys to locate ahead: enough cache misses at once, and still in the first-level cache when looked at.
  static constexpr int kGroup = 32;
  static constexpr int kShards = 64;

  // With `expected` keys it doesn't grow.
  explicit KeyIndex(int64_t expected = 0);
  ~KeyIndex();
  KeyIndex(const KeyIndex&) = delete;
  KeyIndex& operator=(const KeyIndex&) = delete;

  // Searches happen while one is held: for a few thousand keys, as long ones delay the freeing of outgrown arrays.
  // Whoever holds one may change the index as well.
  using ReadGuard = Epochs::Guard;
  ReadGuard Read() const { return arrays_.Enter(); }

  // A cache line. All members are atomic, since searches read them while they change. Loads acquire and stores release,
  // which costs nothing on x86: so whoever reads an entry that was taken anew also sees the removal before it, and a
  // reader needs no fence.
  struct alignas(64) Bucket {
    static constexpr int kEntries = 5;
    // The parts of the state: which entries are taken, how many keys passed by, removals.
    static constexpr uint32_t kTaken = (1u << kEntries) - 1;
    static constexpr uint32_t kPassedUnit = 1u << kEntries;
    static constexpr uint32_t kPassed = 0xFFu << kEntries;
    static constexpr uint32_t kRemovalUnit = 1u << (kEntries + 8);
    static constexpr uint32_t kRemovals = ~(kTaken | kPassed);

    // Which entries have the key; of those that are not taken some may as well, by chance.
    uint32_t Matches(int64_t key) const {
      const auto match = [&](int i) {
        return static_cast<uint32_t>(keys[i].load(std::memory_order_acquire) == key) << i;
      };
      static_assert(kEntries == 5);
      return match(0) | match(1) | match(2) | match(3) | match(4);
    }

    std::atomic<uint32_t> state;
    std::atomic<uint32_t> values[kEntries];
    std::atomic<int64_t> keys[kEntries];
  };
  // Where to look for a key: good while the guard is held.
  struct Place {
    char* array;
    const Bucket* home;
  };
  // Also prefetches.
  Place Locate(int64_t key) const;
  // The key's value, or kAbsent.
  static uint32_t Find(const Place& place, int64_t key);
  uint32_t Find(int64_t key) const { return Find(Locate(key), key); }
  // values[i] of keys[i], in groups; takes guards itself.
  void Find(std::span<const int64_t> keys, uint32_t* values) const;

  // Puts `value` where the key is not there. Gives the key's value: `value`, or that of whoever came before. kAbsent
  // where there is no memory to grow and no room left.
  uint32_t Insert(int64_t key, uint32_t value);
  // Puts `value` in place of `expected`; false where the key has another value or is not there.
  bool Replace(int64_t key, uint32_t expected, uint32_t value);
  // Removes the key if its value is `expected`.
  bool Erase(int64_t key, uint32_t expected);

  // Calls `visit` for every key whose hash, HashOf, is in [begin, end), where the largest number means to the end: all
  // keys that are there for the whole call, and in no particular order. A shard is locked while its part is visited, so
  // `visit` may not change the index. The cost is in proportion to the range, so that a sweep can be taken in steps.
  void Visit(uint64_t begin, uint64_t end, const std::function<void(int64_t key, uint32_t value)>& visit) const;
  static uint64_t HashOf(int64_t key) { return MixBits(static_cast<uint64_t>(key)); }

  // Keys that are there.
  int64_t size() const { return size_.load(std::memory_order_relaxed); }
  // Memory of the arrays, without those that wait for their last readers.
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  // An array's word: its address, a multiple of 256, and the code of its length: 8, 12, 16, 24, ...
  static constexpr uintptr_t kCodeMask = 255;
  static constexpr int64_t LengthOf(int code) { return int64_t{8 + 4 * (code & 1)} << (code >> 1); }
  static int CodeOf(const char* word) { return static_cast<int>(reinterpret_cast<uintptr_t>(word) & kCodeMask); }
  static Bucket* BucketsOf(char* word) { return reinterpret_cast<Bucket*>(word - CodeOf(word)); }
  static int ShardOf(uint64_t hash) { return static_cast<int>(hash >> 58); }
  // The place of a hash among `length` buckets: the 32 bits behind the shard's, in proportion. It grows with the hash.
  static int64_t HomeOf(uint64_t hash, int64_t length) {
    const uint64_t fraction = (hash << 6) >> 32;
    return static_cast<int64_t>((fraction * static_cast<uint64_t>(length)) >> 32);
  }
  // The bucket behind one, around the end.
  static Bucket* Next(char* array, const Bucket* bucket) {
    Bucket* first = BucketsOf(array);
    const int64_t next = bucket - first + 1;
    return first + (next == LengthOf(CodeOf(array)) ? 0 : next);
  }

  // What changes of a shard need; what searches need is in words_.
  struct alignas(64) Shard {
    mutable std::mutex mutex;
    int64_t size = 0;              // guarded by mutex: keys
    std::shared_ptr<Pages> level;  // guarded by mutex: where its array lies
  };

  Bucket* Search(const Place& place, int64_t key, int* entry) const;
  // Moves a shard to a new array, whose length has this code; false without memory. The shard's mutex is held.
  bool Grow(int shard, int code);
  // The memory of all arrays of a length; null without memory.
  std::shared_ptr<Pages> LevelOf(int code);
  static void Put(char* array, Bucket* home, int64_t key, uint32_t value);

  mutable Epochs arrays_;
  // Of each shard, for searches: the address of its array, whose low bits say how long it is.
  std::array<std::atomic<char*>, kShards> words_;
  std::vector<Shard> shards_;
  std::mutex levels_mutex_;
  std::map<int, std::weak_ptr<Pages>> levels_;  // guarded by levels_mutex_: by code, as long as a shard uses it
  std::atomic<int64_t> size_{0};
  std::atomic<int64_t> bytes_{0};
};

// Inline, and forced: the compiler takes a function that does nothing but prefetch for one without effect, and drops
// it.
[[gnu::always_inline]] inline KeyIndex::Place KeyIndex::Locate(int64_t key) const {
  const uint64_t hash = HashOf(key);
  char* const array = words_[ShardOf(hash)].load(std::memory_order_acquire);
  const Bucket* home = BucketsOf(array) + HomeOf(hash, LengthOf(CodeOf(array)));
  PrefetchForRead(home);
  return {array, home};
}

inline uint32_t KeyIndex::Find(const Place& place, int64_t key) {
  const Bucket* bucket = place.home;
  while (true) {
    const uint32_t state = bucket->state.load(std::memory_order_acquire);
    const uint32_t matches = bucket->Matches(key) & state & Bucket::kTaken;
    if (matches != 0) [[likely]] {
      const uint32_t value = bucket->values[__builtin_ctz(matches)].load(std::memory_order_acquire);
      if (((bucket->state.load(std::memory_order_relaxed) ^ state) & Bucket::kRemovals) == 0) return value;
      continue;  // something was removed meanwhile, perhaps this entry: once more
    }
    if ((state & Bucket::kPassed) == 0) return kAbsent;
    bucket = Next(place.array, bucket);
  }
}

}  // namespace lockstep
