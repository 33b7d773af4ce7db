#include "core/embedding/index.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace lockstep {

// All members are atomic, since searches read them while they change. Loads acquire and stores release, which costs
// nothing on x86: so whoever reads an entry that was taken anew also sees the removal before it, and a reader needs no
// fence.
struct alignas(64) KeyIndex::Bucket {
  static constexpr int kEntries = 5;

  std::atomic<uint32_t> state;
  std::atomic<uint32_t> values[kEntries];
  std::atomic<int64_t> keys[kEntries];
};

namespace {

using Bucket = KeyIndex::Bucket;
constexpr int kEntries = 5;

// The parts of a bucket's state.
constexpr uint32_t kTaken = (1u << kEntries) - 1;
constexpr uint32_t kPassedUnit = 1u << kEntries;
constexpr uint32_t kPassed = 0xFFu << kEntries;
constexpr uint32_t kRemovalUnit = 1u << (kEntries + 8);
constexpr uint32_t kRemovals = ~(kTaken | kPassed);

// A count that has reached its end stays there: searches then pass the bucket until the shard grows.
uint32_t PassedOneMore(uint32_t state) { return (state & kPassed) == kPassed ? state : state + kPassedUnit; }
uint32_t PassedOneLess(uint32_t state) { return (state & kPassed) == kPassed ? state : state - kPassedUnit; }

// An array's word: its address, a multiple of 4096, and the code of its length: 2 or 3 times a power of two.
constexpr uintptr_t kCodeMask = 255;
constexpr int64_t LengthOf(int code) { return int64_t{2 + (code & 1)} << (code >> 1); }
Bucket* BucketsOf(uintptr_t word) { return reinterpret_cast<Bucket*>(word & ~kCodeMask); }
int CodeOf(uintptr_t word) { return static_cast<int>(word & kCodeMask); }

// Keys that an array holds before it grows, and the most that it holds if it can't.
int64_t WantedKeys(int code) { return LengthOf(code) * kEntries * 3 / 4; }
int64_t MostKeys(int code) { return LengthOf(code) * kEntries - 1; }

int ShardOf(uint64_t hash) { return static_cast<int>(hash >> 58); }

// The place of a hash among `length` buckets: the 32 bits behind the shard's, in proportion. It grows with the hash.
int64_t HomeOf(uint64_t hash, int64_t length) {
  const uint64_t fraction = (hash << 6) >> 32;
  return static_cast<int64_t>((fraction * static_cast<uint64_t>(length)) >> 32);
}

// The bucket behind one, around the end.
Bucket* Next(uintptr_t array, const Bucket* bucket) {
  Bucket* first = BucketsOf(array);
  const int64_t next = bucket - first + 1;
  return first + (next == LengthOf(CodeOf(array)) ? 0 : next);
}

// Which entries have the key; the free ones may as well, by chance.
uint32_t Matches(const Bucket& bucket, int64_t key) {
  uint32_t matches = 0;
  for (int i = 0; i < kEntries; ++i) {
    matches |= static_cast<uint32_t>(bucket.keys[i].load(std::memory_order_acquire) == key) << i;
  }
  return matches;
}

}  // namespace

KeyIndex::KeyIndex(int64_t expected) : words_{}, shards_(kShards) {
  // Hashes don't share out evenly: five standard deviations more than the mean.
  const double mean = static_cast<double>(expected) / kShards;
  int code = 0;
  while (static_cast<double>(WantedKeys(code)) < mean + 5 * std::sqrt(mean)) ++code;
  for (int shard = 0; shard < kShards; ++shard) Grow(shard, code);
}

KeyIndex::~KeyIndex() = default;

KeyIndex::Place KeyIndex::Locate(int64_t key) const {
  const uint64_t hash = HashOf(key);
  const uintptr_t array = words_[ShardOf(hash)].load(std::memory_order_acquire);
  const Bucket* home = BucketsOf(array) + HomeOf(hash, LengthOf(CodeOf(array)));
  __builtin_prefetch(home);
  return {array, home};
}

uint32_t KeyIndex::Find(const Place& place, int64_t key) {
  const Bucket* bucket = place.home;
  while (true) {
    const uint32_t state = bucket->state.load(std::memory_order_acquire);
    const uint32_t matches = Matches(*bucket, key) & state & kTaken;
    if (matches != 0) {
      const uint32_t value = bucket->values[__builtin_ctz(matches)].load(std::memory_order_acquire);
      if (((bucket->state.load(std::memory_order_relaxed) ^ state) & kRemovals) == 0) return value;
      continue;  // something was removed meanwhile, perhaps this entry: once more
    }
    if ((state & kPassed) == 0) return kAbsent;
    bucket = Next(place.array, bucket);
  }
}

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

// The changes below hold the shard's mutex: of its array, only they write.

// The key's bucket and entry; null where it is not there.
KeyIndex::Bucket* KeyIndex::Search(const Place& place, int64_t key, int* entry) const {
  const Bucket* bucket = place.home;
  while (true) {
    const uint32_t state = bucket->state.load(std::memory_order_relaxed);
    const uint32_t matches = Matches(*bucket, key) & state & kTaken;
    if (matches != 0) {
      *entry = __builtin_ctz(matches);
      return const_cast<Bucket*>(bucket);
    }
    if ((state & kPassed) == 0) return nullptr;
    bucket = Next(place.array, bucket);
  }
}

void KeyIndex::Put(uintptr_t array, Bucket* home, int64_t key, uint32_t value) {
  Bucket* bucket = home;
  uint32_t state = bucket->state.load(std::memory_order_relaxed);
  while ((state & kTaken) == kTaken) {
    bucket->state.store(PassedOneMore(state), std::memory_order_release);
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
  const std::lock_guard lock(shard.mutex);
  int entry;
  if (const Bucket* bucket = Search(Locate(key), key, &entry)) return bucket->values[entry];
  const int code = CodeOf(words_[number].load(std::memory_order_relaxed));
  if (shard.size >= WantedKeys(code) && !Grow(number, code + 1) && shard.size >= MostKeys(code)) return kAbsent;
  const Place place = Locate(key);
  Put(place.array, const_cast<Bucket*>(place.home), key, value);
  ++shard.size;
  size_.fetch_add(1, std::memory_order_relaxed);
  return value;
}

bool KeyIndex::Replace(int64_t key, uint32_t expected, uint32_t value) {
  const std::lock_guard lock(shards_[ShardOf(HashOf(key))].mutex);
  int entry;
  Bucket* bucket = Search(Locate(key), key, &entry);
  if (bucket == nullptr || bucket->values[entry] != expected) return false;
  bucket->values[entry].store(value, std::memory_order_release);
  return true;
}

bool KeyIndex::Erase(int64_t key, uint32_t expected) {
  Shard& shard = shards_[ShardOf(HashOf(key))];
  const std::lock_guard lock(shard.mutex);
  const Place place = Locate(key);
  int entry;
  Bucket* bucket = Search(place, key, &entry);
  if (bucket == nullptr || bucket->values[entry] != expected) return false;
  const uint32_t state = bucket->state.load(std::memory_order_relaxed);
  bucket->state.store((state & ~(1u << entry)) + kRemovalUnit, std::memory_order_release);
  // Last, so that a search for a key behind them never ends too early.
  for (auto* passed = const_cast<Bucket*>(place.home); passed != bucket; passed = Next(place.array, passed)) {
    passed->state.store(PassedOneLess(passed->state), std::memory_order_release);
  }
  --shard.size;
  size_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

// Copies in the order of the buckets, which is nearly that of the new array's. Searches go on in the old one, which
// nobody changes any more, as the mutex is held until the new one has taken its place.
bool KeyIndex::Grow(int number, int code) {
  Shard& shard = shards_[number];
  Result<Pages> pages = Pages::Allocate(LengthOf(code) * static_cast<int64_t>(sizeof(Bucket)));
  if (!pages.ok()) return false;
  const uintptr_t array = reinterpret_cast<uintptr_t>(pages->data()) | static_cast<uintptr_t>(code);
  const uintptr_t old = words_[number].load(std::memory_order_relaxed);
  if (shard.pages.data() != nullptr) {
    const Bucket* buckets = BucketsOf(old);
    for (int64_t i = 0; i < LengthOf(CodeOf(old)); ++i) {
      const uint32_t taken = buckets[i].state.load(std::memory_order_relaxed) & kTaken;
      for (int entry = 0; entry < kEntries; ++entry) {
        if ((taken >> entry & 1) == 0) continue;
        const int64_t key = buckets[i].keys[entry];
        Put(array, BucketsOf(array) + HomeOf(HashOf(key), LengthOf(code)), key, buckets[i].values[entry]);
      }
    }
  }
  words_[number].store(array, std::memory_order_release);
  bytes_.fetch_add(pages->bytes() - shard.pages.bytes(), std::memory_order_relaxed);
  if (shard.pages.data() != nullptr) {
    arrays_.Retire([outgrown = std::make_shared<Pages>(std::move(shard.pages))] {});
  }
  shard.pages = *std::move(pages);
  return true;
}

void KeyIndex::Visit(uint64_t begin, uint64_t end, const std::function<void(int64_t, uint32_t)>& visit) const {
  if (begin >= end) return;
  for (int number = ShardOf(begin); number <= ShardOf(end - 1); ++number) {
    const Shard& shard = shards_[number];
    const std::lock_guard lock(shard.mutex);
    const uintptr_t array = words_[number].load(std::memory_order_relaxed);
    const int64_t length = LengthOf(CodeOf(array));
    const int64_t first = number == ShardOf(begin) ? HomeOf(begin, length) : 0;
    const int64_t last = number == ShardOf(end - 1) ? HomeOf(end - 1, length) : length - 1;
    // Behind the last home, as far as keys went that found theirs full; but not around to where it began.
    const Bucket* bucket = BucketsOf(array) + first;
    for (int64_t seen = 0; seen < length; ++seen, bucket = Next(array, bucket)) {
      const uint32_t state = bucket->state.load(std::memory_order_relaxed);
      for (int entry = 0; entry < kEntries; ++entry) {
        if ((state >> entry & 1) == 0) continue;
        const int64_t key = bucket->keys[entry];
        const uint64_t hash = HashOf(key);
        if (hash >= begin && hash < end) visit(key, bucket->values[entry]);
      }
      if (first + seen >= last && (state & kPassed) == 0) break;
    }
  }
}

}  // namespace lockstep
