#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/base/hash.h"
#include "core/base/mutex.h"
#include "core/base/pages.h"
#include "core/base/prefetch.h"
#include "core/embedding/epochs.h"

namespace lockstep {

// A concurrent hash index: int64 key -> 32-bit value, which is the number of a row. Any int64 is a key.
//
//   index    64 shards, by the first 6 bits of a key's hash; each has its array of buckets and grows by itself
//   array    8, 12, 16, 24, ... buckets. A key's home is the bucket in proportion to its hash. So, except for keys that
//            overflowed, the buckets of an array of any length are in the order of the hashes
//   bucket   one cache line of 5 entries:
//
//              state   4 bytes   which entries are taken (5 bits) | how many keys passed by (8) | removals (19)
//              values  5 x 4
//              keys    5 x 8
//
// A key whose home is full goes to the next bucket with room, and is counted in all buckets that it passed. A search
// ends at the first bucket that no key passed; nearly all searches take one cache line. A shard grows by a third or a
// half when more than 3/4 of its entries are taken. All shards grow at about the same time, so arrays of one length lie
// side by side in large pages. The index takes 17 to 26 bytes per key, and 1/64 more while a shard grows.
//
// Threads. Searches take no lock and never wait. A bucket's state publishes its entries. If an entry was removed and
// taken again while it was read, the count of removals has changed. (To miss this, the count would have to wrap around:
// 524,288 removals from one bucket between two loads.) Changes lock their shard. Growth copies a shard while it is
// searched. Its old array is freed when all searches that may use it have ended, which their ReadGuards tell. A search
// returns the state of some moment during the search. Thread-safe.
//
// Searching a key takes no virtual call, no allocation and no lock. The cache misses of many keys overlap if a caller
// locates them all first:
// ```cpp
// const KeyIndex::ReadGuard guard = index.Read();
// KeyIndex::Place places[KeyIndex::kGroup];
// for (int i = 0; i < n; ++i) places[i] = index.Locate(keys[i]);    // prefetches
// for (int i = 0; i < n; ++i) values[i] = KeyIndex::Find(places[i], keys[i]);
// ```
class KeyIndex {
 public:
  // The result of Find for a missing key; no key has it as a value.
  static constexpr uint32_t kAbsent = 0xFFFFFFFF;
  // The number of keys to locate ahead: enough cache misses at once, and still in the first-level cache when searched.
  static constexpr int kGroup = 32;
  static constexpr int kShards = 64;

  // Up to `expected` keys it does not grow.
  explicit KeyIndex(int64_t expected = 0);
  ~KeyIndex();
  KeyIndex(const KeyIndex&) = delete;
  KeyIndex& operator=(const KeyIndex&) = delete;

  // Searches run while a guard is held. Hold it for a few thousand keys: a longer one delays the freeing of old arrays.
  // Its holder may change the index as well.
  using ReadGuard = Epochs::Guard;
  ReadGuard Read() const { return arrays_.Enter(); }

  // A cache line. All members are atomic, because searches read them while they change. Loads acquire and stores
  // release, which costs nothing on x86. So a reader of an entry that was taken again also sees the removal before it,
  // without a fence.
  struct alignas(64) Bucket {
    static constexpr int kEntries = 5;
    // The parts of the state: taken entries, number of keys that passed by, number of removals.
    static constexpr uint32_t kTaken = (1u << kEntries) - 1;
    static constexpr uint32_t kPassedUnit = 1u << kEntries;
    static constexpr uint32_t kPassed = 0xFFu << kEntries;
    static constexpr uint32_t kRemovalUnit = 1u << (kEntries + 8);
    static constexpr uint32_t kRemovals = ~(kTaken | kPassed);

    // Returns the entries with the key. Entries that are not taken may match by chance.
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
  // The place to look for a key, valid while the guard is held.
  struct Place {
    char* array;
    const Bucket* home;
  };
  // Finds the place and prefetches it.
  Place Locate(int64_t key) const;
  // Returns the key's value, or kAbsent.
  static uint32_t Find(const Place& place, int64_t key);
  uint32_t Find(int64_t key) const { return Find(Locate(key), key); }
  // Finds values[i] of keys[i], in groups; takes guards itself.
  void Find(std::span<const int64_t> keys, uint32_t* values) const;

  // Inserts the key with `value` if it is missing. Returns the key's value: `value`, or an earlier one. Returns kAbsent
  // if there is neither memory to grow nor room.
  uint32_t Insert(int64_t key, uint32_t value);
  // Replaces `expected` by `value`; returns false if the key has another value or is missing.
  bool Replace(int64_t key, uint32_t expected, uint32_t value);
  // Removes the key if its value is `expected`.
  bool Erase(int64_t key, uint32_t expected);

  // Calls `visit` for every key whose hash, HashOf, is in [begin, end), in no particular order; the largest `end` means
  // up to the last hash. It visits all keys that exist during the whole call. A shard is locked while its part is
  // visited, so `visit` may not change the index. The cost is proportional to the range, so a sweep can be made in
  // steps.
  void Visit(uint64_t begin, uint64_t end, const std::function<void(int64_t key, uint32_t value)>& visit) const;
  static uint64_t HashOf(int64_t key) { return MixBits(static_cast<uint64_t>(key)); }

  // Returns the number of keys.
  int64_t size() const { return size_.load(std::memory_order_relaxed); }
  // Returns the memory of the arrays, without those that wait for their last readers.
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  // The word of an array: its address, a multiple of 256, and the code of its length: 8, 12, 16, 24, ...
  static constexpr uintptr_t kCodeMask = 255;
  static constexpr int64_t LengthOf(int code) { return int64_t{8 + 4 * (code & 1)} << (code >> 1); }
  static int CodeOf(const char* word) { return static_cast<int>(reinterpret_cast<uintptr_t>(word) & kCodeMask); }
  static Bucket* BucketsOf(char* word) { return reinterpret_cast<Bucket*>(word - CodeOf(word)); }
  static int ShardOf(uint64_t hash) { return static_cast<int>(hash >> 58); }
  // Returns a hash's place among `length` buckets: the 32 bits after the shard's, in proportion. It grows with the
  // hash.
  static int64_t HomeOf(uint64_t hash, int64_t length) {
    const uint64_t fraction = (hash << 6) >> 32;
    return static_cast<int64_t>((fraction * static_cast<uint64_t>(length)) >> 32);
  }
  // Returns the next bucket, around the end.
  static Bucket* Next(char* array, const Bucket* bucket) {
    Bucket* first = BucketsOf(array);
    const int64_t next = bucket - first + 1;
    return first + (next == LengthOf(CodeOf(array)) ? 0 : next);
  }

  // The part of a shard that changes need; words_ has the part for searches.
  struct alignas(64) Shard {
    mutable Mutex mutex;
    int64_t size LOCKSTEP_GUARDED_BY(mutex) = 0;              // keys
    std::shared_ptr<Pages> level LOCKSTEP_GUARDED_BY(mutex);  // the memory of its array
  };

  Bucket* Search(const Place& place, int64_t key, int* entry) const;
  // Moves a shard to a new array with this code of length; returns false without memory.
  bool Grow(Shard& shard, int number, int code) LOCKSTEP_REQUIRES(shard.mutex);
  // Returns the memory of all arrays of a length; null without memory.
  std::shared_ptr<Pages> LevelOf(int code);
  static void Put(char* array, Bucket* home, int64_t key, uint32_t value);

  mutable Epochs arrays_;
  // For searches, by shard: the address of its array, whose low bits are the code of its length.
  std::array<std::atomic<char*>, kShards> words_;
  std::vector<Shard> shards_;
  Mutex levels_mutex_;
  std::map<int, std::weak_ptr<Pages>> levels_ LOCKSTEP_GUARDED_BY(levels_mutex_);  // by code, while a shard uses it
  std::atomic<int64_t> size_{0};
  std::atomic<int64_t> bytes_{0};
};

// Forced inline: the compiler treats a function that only prefetches as one without effect, and would drop its calls.
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
      continue;  // an entry was removed meanwhile, perhaps this one: repeat
    }
    if ((state & Bucket::kPassed) == 0) return kAbsent;
    bucket = Next(place.array, bucket);
  }
}

}  // namespace lockstep
