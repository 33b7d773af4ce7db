#include "core/embedding/index.h"

#include <algorithm>
#include <cmath>

namespace lockstep {

namespace {

using Bucket = KeyIndex::Bucket;
constexpr int kEntries = Bucket::kEntries;
constexpr uint32_t kTaken = Bucket::kTaken, kPassed = Bucket::kPassed;

// A count that has reached its maximum stays there: searches then pass the bucket until the shard grows.
uint32_t IncrementOverflow(uint32_t state) {
  return (state & kPassed) == kPassed ? state : state + Bucket::kPassedUnit;
}
uint32_t DecrementOverflow(uint32_t state) {
  return (state & kPassed) == kPassed ? state : state - Bucket::kPassedUnit;
}

// The number of keys that an array of this length holds before it grows, and the most that it holds if it cannot grow.
int64_t WantedKeys(int64_t length) { return length * kEntries * 3 / 4; }
int64_t MostKeys(int64_t length) { return length * kEntries - 1; }

}  // namespace

KeyIndex::KeyIndex(int64_t expected) : words_{}, shards_(kShards) {
  // Hashes are not distributed evenly: five standard deviations more than the mean.
  const double mean = static_cast<double>(expected) / kShards;
  int code = 0;
  while (static_cast<double>(WantedKeys(LengthOf(code))) < mean + 5 * std::sqrt(mean)) ++code;
  for (int number = 0; number < kShards; ++number) {
    Shard& shard = shards_[number];
    const MutexLock lock(shard.mutex);
    // The number is a hint: without enough memory the index begins small.
    if (!Grow(shard, number, code)) Grow(shard, number, 0);
  }
}

KeyIndex::~KeyIndex() = default;

void KeyIndex::Find(std::span<const int64_t> keys, uint32_t* values) const {
  constexpr size_t kGuarded = 4096;
  for (size_t begin = 0; begin < keys.size(); begin += kGuarded) {
    const ReadGuard guard = Read();
    const size_t end = std::min(begin + kGuarded, keys.size());
    for (size_t group = begin; group < end; group += kGroup) {
      const size_t count = std::min<size_t>(kGroup, end - group);
      Place places[kGroup];
      for (size_t i = 0; i < count; ++i) places[i] = Locate(keys[group + i]);
      for (size_t i = 0; i < count; ++i) values[group + i] = Find(places[i], keys[group + i]);
    }
  }
}

// The changes below hold the shard's mutex, so no other thread writes its array.

// Returns the key's bucket and entry, or null if it is not there.
KeyIndex::Bucket* KeyIndex::Search(const Place& place, int64_t key, int* entry) const {
  const Bucket* bucket = place.home;
  while (true) {
    const uint32_t state = bucket->state.load(std::memory_order_relaxed);
    const uint32_t matches = bucket->Matches(key) & state & kTaken;
    if (matches != 0) {
      *entry = __builtin_ctz(matches);
      return const_cast<Bucket*>(bucket);
    }
    if ((state & kPassed) == 0) return nullptr;
    bucket = Next(place.array, bucket);
  }
}

void KeyIndex::Put(char* array, Bucket* home, int64_t key, uint32_t value) {
  Bucket* bucket = home;
  uint32_t state = bucket->state.load(std::memory_order_relaxed);
  while ((state & kTaken) == kTaken) {
    bucket->state.store(IncrementOverflow(state), std::memory_order_release);
    bucket = Next(array, bucket);
    state = bucket->state.load(std::memory_order_relaxed);
  }
  const int entry = __builtin_ctz(~state & kTaken);
  bucket->keys[entry].store(key, std::memory_order_release);
  bucket->values[entry].store(value, std::memory_order_release);
  bucket->state.store(state | 1u << entry, std::memory_order_release);
}

uint32_t KeyIndex::Insert(int64_t key, uint32_t value) {
  const int number = ShardOf(HashOf(key));
  Shard& shard = shards_[number];
  const MutexLock lock(shard.mutex);
  int entry;
  if (const Bucket* bucket = Search(Locate(key), key, &entry)) return bucket->values[entry];
  const int code = CodeOf(words_[number].load(std::memory_order_relaxed));
  if (shard.size >= WantedKeys(LengthOf(code)) && !Grow(shard, number, code + 1) &&
      shard.size >= MostKeys(LengthOf(code)))
    return kAbsent;
  const Place place = Locate(key);
  Put(place.array, const_cast<Bucket*>(place.home), key, value);
  ++shard.size;
  size_.fetch_add(1, std::memory_order_relaxed);
  return value;
}

bool KeyIndex::Replace(int64_t key, uint32_t expected, uint32_t value) {
  const MutexLock lock(shards_[ShardOf(HashOf(key))].mutex);
  int entry;
  Bucket* bucket = Search(Locate(key), key, &entry);
  if (bucket == nullptr || bucket->values[entry] != expected) return false;
  bucket->values[entry].store(value, std::memory_order_release);
  return true;
}

bool KeyIndex::Erase(int64_t key, uint32_t expected) {
  Shard& shard = shards_[ShardOf(HashOf(key))];
  const MutexLock lock(shard.mutex);
  const Place place = Locate(key);
  int entry;
  Bucket* bucket = Search(place, key, &entry);
  if (bucket == nullptr || bucket->values[entry] != expected) return false;
  const uint32_t state = bucket->state.load(std::memory_order_relaxed);
  bucket->state.store((state & ~(1u << entry)) + Bucket::kRemovalUnit, std::memory_order_release);
  // The buckets that the key passed change last, so that a search for a key behind them never ends too early.
  for (auto* passed = const_cast<Bucket*>(place.home); passed != bucket; passed = Next(place.array, passed)) {
    passed->state.store(DecrementOverflow(passed->state), std::memory_order_release);
  }
  --shard.size;
  size_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

std::shared_ptr<Pages> KeyIndex::LevelOf(int code) {
  const MutexLock lock(levels_mutex_);
  std::shared_ptr<Pages> level = levels_[code].lock();
  if (level != nullptr) return level;
  Result<Pages> pages = Pages::Allocate(kShards * LengthOf(code) * static_cast<int64_t>(sizeof(Bucket)));
  if (!pages.ok()) return nullptr;
  level = std::make_shared<Pages>(*std::move(pages));
  levels_[code] = level;
  return level;
}

// Copies in the order of the buckets, which is nearly the new array's order. Searches continue in the old array, which
// no thread changes any more: the mutex is held until the new array has taken its place.
//
// A level's memory is allocated as shards move in and released as they move out. So two levels together never take much
// more than one. A shard moves into each level once, so its array is zero at that time.
bool KeyIndex::Grow(Shard& shard, int number, int code) {
  std::shared_ptr<Pages> level = LevelOf(code);
  if (level == nullptr) return false;
  const int64_t bytes = LengthOf(code) * static_cast<int64_t>(sizeof(Bucket));
  char* const array = level->data() + number * bytes + code;
  char* const old = words_[number].load(std::memory_order_relaxed);
  int64_t old_bytes = 0;
  if (shard.level != nullptr) {
    const Bucket* buckets = BucketsOf(old);
    const int64_t length = LengthOf(CodeOf(old));
    old_bytes = length * static_cast<int64_t>(sizeof(Bucket));
    for (int64_t i = 0; i < length; ++i) {
      const uint32_t taken = buckets[i].state.load(std::memory_order_relaxed) & kTaken;
      for (int entry = 0; entry < kEntries; ++entry) {
        if ((taken >> entry & 1) == 0) continue;
        const int64_t key = buckets[i].keys[entry];
        Put(array, BucketsOf(array) + HomeOf(HashOf(key), LengthOf(code)), key, buckets[i].values[entry]);
      }
    }
  }
  words_[number].store(array, std::memory_order_release);
  bytes_.fetch_add(bytes - old_bytes, std::memory_order_relaxed);
  if (shard.level != nullptr) {
    arrays_.Retire([outgrown = std::move(shard.level), begin = number * old_bytes, end = (number + 1) * old_bytes] {
      outgrown->Release(begin, end);
    });
  }
  shard.level = std::move(level);
  return true;
}

void KeyIndex::Visit(uint64_t begin, uint64_t end, const std::function<void(int64_t, uint32_t)>& visit) const {
  if (begin >= end) return;
  // The position after the last hash does not fit into 64 bits.
  const uint64_t last_hash = end == UINT64_MAX ? end : end - 1;
  for (int number = ShardOf(begin); number <= ShardOf(last_hash); ++number) {
    const Shard& shard = shards_[number];
    const MutexLock lock(shard.mutex);
    char* const array = words_[number].load(std::memory_order_relaxed);
    const int64_t length = LengthOf(CodeOf(array));
    const int64_t first = number == ShardOf(begin) ? HomeOf(begin, length) : 0;
    const int64_t last = number == ShardOf(last_hash) ? HomeOf(last_hash, length) : length - 1;
    // Visits buckets behind the last home as long as keys overflowed into them, but not around to the first one.
    const Bucket* bucket = BucketsOf(array) + first;
    for (int64_t seen = 0; seen < length; ++seen, bucket = Next(array, bucket)) {
      const uint32_t state = bucket->state.load(std::memory_order_relaxed);
      for (int entry = 0; entry < kEntries; ++entry) {
        if ((state >> entry & 1) == 0) continue;
        const int64_t key = bucket->keys[entry];
        const uint64_t hash = HashOf(key);
        if (hash >= begin && hash <= last_hash) visit(key, bucket->values[entry]);
      }
      if (first + seen >= last && (state & kPassed) == 0) break;
    }
  }
}

}  // namespace lockstep
