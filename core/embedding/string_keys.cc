#include "core/embedding/string_keys.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/strings.h"

namespace lockstep {
namespace {

constexpr int64_t kGrain = 1024;
// A sequence of fingerprints never gets this long, so a key with a larger salt is not a fingerprint of the string.
constexpr uint64_t kMostSalt = 1 << 16;
constexpr int64_t kMostBytes = 0xFFFFFFFF;

}  // namespace

// The place of a string, written before the index knows it.
struct StringKeys::Entry {
  const char* data;
  uint32_t size;
  uint32_t block;  // of the arena
};

// Blocks of bytes that are filled one after another. A block is freed when all of its strings are removed. A string
// that stays keeps its block, so new strings reuse the places of removed ones. If strings come and go for ever, memory
// stays at the largest amount needed at once, by sizes, instead of one block for each string that stayed.
class StringKeys::Arena {
 public:
  // Copies the bytes; returns null without memory.
  const char* Put(std::string_view bytes, uint32_t* block) {
    const MutexLock lock(mutex_);
    const int64_t size = PlaceSize(bytes.size());
    Place place;
    if (!TakeHole(size, &place) && !TakeFresh(size, &place)) return nullptr;
    std::memcpy(place.data, bytes.data(), bytes.size());
    ++blocks_[place.block].strings;
    *block = place.block;
    return place.data;
  }

  // Frees a string that no thread reads any more.
  void Drop(const Entry& entry) {
    const MutexLock lock(mutex_);
    Block& block = blocks_[entry.block];
    if (--block.strings == 0 && entry.block + 1 < blocks_.size()) {  // the last block is still being filled
      Free(block);
      return;
    }
    const int64_t size = PlaceSize(entry.size);
    if (size < kBlockBytes) holes_[size].push_back({const_cast<char*>(entry.data), entry.block});
  }

  int64_t bytes() const {
    const MutexLock lock(mutex_);
    int64_t bytes = bytes_;
    for (const auto& [size, holes] : holes_) bytes += static_cast<int64_t>(holes.capacity() * sizeof(Place));
    return bytes;
  }

 private:
  static constexpr int64_t kBlockBytes = 256 << 10;
  struct Block {
    Pages pages;
    int64_t used = 0;
    int64_t strings = 0;
  };
  struct Place {
    char* data;
    uint32_t block;
  };

  // Returns the bytes of a string's place. There are few sizes, so that most places fit another string: multiples of 8,
  // and from 64 on of an eighth of the power of two below. A string of a block's size or more gets its own block.
  static int64_t PlaceSize(size_t size) {
    if (size >= static_cast<size_t>(kBlockBytes)) return static_cast<int64_t>(size);
    const size_t step = std::max<size_t>(8, std::bit_floor(size) / 8);
    return static_cast<int64_t>(std::max(step, (size + step - 1) / step * step));
  }

  void Free(Block& block) LOCKSTEP_REQUIRES(mutex_) {
    bytes_ -= block.pages.bytes();
    block.pages = Pages();
  }

  // Takes the place of a removed string. Holes may outlive their blocks; such holes are skipped here.
  bool TakeHole(int64_t size, Place* place) LOCKSTEP_REQUIRES(mutex_) {
    const auto found = holes_.find(size);
    if (found == holes_.end()) return false;
    for (std::vector<Place>& holes = found->second; !holes.empty();) {
      *place = holes.back();
      holes.pop_back();
      if (blocks_[place->block].pages.bytes() > 0) return true;
    }
    return false;
  }

  bool TakeFresh(int64_t size, Place* place) LOCKSTEP_REQUIRES(mutex_) {
    if (blocks_.empty() || blocks_.back().used + size > blocks_.back().pages.bytes()) {
      Result<Pages> pages = Pages::Allocate(std::max<int64_t>(kBlockBytes, size));
      if (!pages.ok()) return false;
      bytes_ += pages->bytes();
      // All strings may have been removed while the last block was being filled; it is freed here.
      if (!blocks_.empty() && blocks_.back().strings == 0) Free(blocks_.back());
      blocks_.push_back({*std::move(pages)});
    }
    Block& last = blocks_.back();
    *place = {last.pages.data() + last.used, static_cast<uint32_t>(blocks_.size()) - 1};
    last.used += size;
    return true;
  }

  mutable Mutex mutex_;
  std::vector<Block> blocks_ LOCKSTEP_GUARDED_BY(mutex_);  // numbers are never reused
  // By size. At most as many as there were strings of the size at once.
  std::unordered_map<int64_t, std::vector<Place>> holes_ LOCKSTEP_GUARDED_BY(mutex_);
  int64_t bytes_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // of blocks
};

StringKeys::StringKeys(FingerprintFunction fingerprint)
    : fingerprint_(fingerprint), arena_(std::make_unique<Arena>()) {}
StringKeys::~StringKeys() = default;

Result<std::unique_ptr<StringKeys>> StringKeys::Create(FingerprintFunction fingerprint) {
  std::unique_ptr<StringKeys> strings(new StringKeys(fingerprint));
  LOCKSTEP_ASSIGN_OR_RETURN(const int column, strings->entries_.AddColumn(sizeof(Entry)));
  strings->entry_ = strings->entries_.column(column);
  return strings;
}

std::string_view StringKeys::BytesOf(uint32_t entry) const {
  const auto& found = *reinterpret_cast<const Entry*>(entry_[entry]);
  return {found.data, found.size};
}

// A string may come after a free fingerprint, whose string was removed. So all salts that were ever used are searched.
int64_t StringKeys::Search(std::string_view bytes, uint32_t* entry) const {
  const uint64_t most = most_salt_.load(std::memory_order_acquire);
  int64_t free_key = 0;
  bool has_free = false;
  for (uint64_t salt = 0; salt <= most || !has_free; ++salt) {
    const auto key = static_cast<int64_t>(fingerprint_(bytes, salt));
    *entry = index_.Find(key);
    if (*entry != KeyIndex::kAbsent && BytesOf(*entry) == bytes) return key;
    if (*entry == KeyIndex::kAbsent && !has_free) {
      free_key = key;
      has_free = true;
    }
  }
  *entry = KeyIndex::kAbsent;
  return free_key;
}

Result<bool> StringKeys::Put(std::string_view bytes, int64_t key, uint64_t salt) {
  uint32_t number;
  LOCKSTEP_RETURN_IF_ERROR(entries_.Take({&number, 1}));
  auto& entry = *reinterpret_cast<Entry*>(entry_[number]);
  entry.size = static_cast<uint32_t>(bytes.size());
  entry.data = arena_->Put(bytes, &entry.block);
  uint32_t found = KeyIndex::kAbsent;
  if (entry.data != nullptr) {
    // This comes before the key can be found, so that a thread that sees the key also searches far enough.
    uint64_t most = most_salt_.load(std::memory_order_relaxed);
    while (most < salt && !most_salt_.compare_exchange_weak(most, salt, std::memory_order_acq_rel)) {
    }
    found = index_.Insert(key, number);
  }
  if (found == number) return true;
  if (entry.data != nullptr) arena_->Drop(entry);
  entries_.Give({&number, 1});
  if (found == KeyIndex::kAbsent) return ResourceExhausted("string keys: no memory");
  return BytesOf(found) == bytes;  // another thread was faster, with this string or another one
}

Result<int64_t> StringKeys::Add(std::string_view bytes) {
  if (static_cast<int64_t>(bytes.size()) > kMostBytes) {
    return InvalidArgument(StrCat("string keys: a string of ", bytes.size(), " bytes, wanted less than 2^32"));
  }
  while (true) {
    uint32_t entry;
    const int64_t key = Search(bytes, &entry);
    if (entry != KeyIndex::kAbsent) return key;
    uint64_t salt = 0;
    while (static_cast<int64_t>(fingerprint_(bytes, salt)) != key) ++salt;
    LOCKSTEP_ASSIGN_OR_RETURN(const bool put, Put(bytes, key, salt));
    if (put) return key;
  }
}

Status StringKeys::Intern(std::span<const std::string_view> strings, int64_t* keys, const ParallelFor& parallel) {
  const ReaderLock gate(gate_);
  Mutex mutex;
  Status status;  // guarded by mutex while threads work
  parallel(static_cast<int64_t>(strings.size()), kGrain, [&](int64_t begin, int64_t end) {
    const KeyIndex::ReadGuard guard = index_.Read();
    for (int64_t i = begin; i < end; ++i) {
      Result<int64_t> key = Add(strings[i]);
      if (key.ok()) {
        keys[i] = *key;
        continue;
      }
      const MutexLock lock(mutex);
      status = key.status();
      return;
    }
  });
  return status;
}

void StringKeys::Find(std::span<const std::string_view> strings, int64_t* keys, const ParallelFor& parallel) const {
  const ReaderLock gate(gate_);
  parallel(static_cast<int64_t>(strings.size()), kGrain, [&](int64_t begin, int64_t end) {
    const KeyIndex::ReadGuard guard = index_.Read();
    uint32_t entry;
    for (int64_t i = begin; i < end; ++i) keys[i] = Search(strings[i], &entry);
  });
}

bool StringKeys::Bytes(int64_t key, std::string* bytes) const {
  const ReaderLock gate(gate_);
  return Present(key, bytes);
}

bool StringKeys::Present(int64_t key, std::string* bytes) const {
  const KeyIndex::ReadGuard guard = index_.Read();
  const uint32_t entry = index_.Find(key);
  if (entry == KeyIndex::kAbsent) return false;
  *bytes = BytesOf(entry);
  return true;
}

Status StringKeys::Restore(std::string_view bytes, int64_t key) {
  const ReaderLock gate(gate_);
  const KeyIndex::ReadGuard guard = index_.Read();
  uint32_t entry;
  const int64_t present = Search(bytes, &entry);
  if (entry != KeyIndex::kAbsent && present == key) return OkStatus();
  uint64_t salt = 0;
  while (salt < kMostSalt && static_cast<int64_t>(fingerprint_(bytes, salt)) != key) ++salt;
  bool put = false;
  if (entry == KeyIndex::kAbsent && salt < kMostSalt) {
    LOCKSTEP_ASSIGN_OR_RETURN(put, Put(bytes, key, salt));
  }
  if (put) return OkStatus();
  return InvalidArgument(StrCat("string keys: '", bytes, "' can't have the key ", key,
                                entry != KeyIndex::kAbsent ? ": it has another key"
                                : salt < kMostSalt         ? ": another string has this key"
                                                           : ": this is not a fingerprint of the string"));
}

void StringKeys::Remove(std::span<const int64_t> keys) {
  const WriterLock gate(gate_);
  for (const int64_t key : keys) {
    const uint32_t entry = index_.Find(key);
    if (entry == KeyIndex::kAbsent || !index_.Erase(key, entry)) continue;
    // If the key had several strings since the snapshot began, or the same one again, the first is kept.
    if (!in_snapshot_ || !kept_.emplace(key, entry).second) Free(entry);
  }
}

void StringKeys::Free(uint32_t entry) {
  arena_->Drop(*reinterpret_cast<const Entry*>(entry_[entry]));
  entries_.Give({&entry, 1});
}

void StringKeys::FreeKept() {
  for (const auto& [key, entry] : kept_) Free(entry);
  kept_ = {};
}

void StringKeys::BeginSnapshot() {
  const WriterLock gate(gate_);
  FreeKept();
  in_snapshot_ = true;
}

void StringKeys::EndSnapshot() {
  const WriterLock gate(gate_);
  FreeKept();
  in_snapshot_ = false;
}

bool StringKeys::BytesInSnapshot(int64_t key, std::string* bytes) const {
  const ReaderLock gate(gate_);
  const auto kept = kept_.find(key);
  if (kept == kept_.end()) return Present(key, bytes);
  *bytes = BytesOf(kept->second);
  return true;
}

int64_t StringKeys::bytes() const { return index_.bytes() + entries_.bytes() + arena_->bytes(); }

}  // namespace lockstep
