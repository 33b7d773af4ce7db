#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/base/fair_shared_mutex.h"
#include "core/base/hash.h"
#include "core/base/parallel.h"
#include "core/base/status.h"
#include "core/embedding/index.h"
#include "core/embedding/slab.h"

namespace lockstep {

// String keys for a table of int64 keys. Each string gets its own int64 key, and its bytes are kept for export and
// restore.
//
// A string's key is a fingerprint of its bytes. It is the same on every worker and in every run, so initial values
// depend only on the string. Every search compares the bytes. If another string already has the key (with a billion
// strings: a chance of 3 %), the next of a sequence of fingerprints is taken. So two strings never share a key, and
// only in that case does a key depend on which string came first. Workers shard strings by the first fingerprint,
// FirstKey, which depends only on the string. So strings that compete for a key have the same owner.
// ```cpp
// strings.Intern(batch, keys, parallel);  table.Resolve(keys, ...);     // training
// strings.Find(batch, keys, parallel);    table.Lookup(keys, ...);      // evaluation: adds nothing
// strings.Remove(table.Evict(now));                                     // removed keys
// ```
// A snapshot of the table needs the strings as they were when it began, and reads them later. From BeginSnapshot to
// EndSnapshot, strings that are removed stay in memory, and BytesInSnapshot reads them.
//
// Keys that a Bloom filter has not admitted are not in the table, so Evict never returns them. Their strings (with
// kNoRow) are removed after the step, or they would stay forever.
//
// Bytes lie in blocks that never move. A block is freed when all of its strings are removed; until then other strings
// take their places. A string takes its bytes, rounded up to a multiple of 8 or by an eighth, and about 45 bytes more.
// Thread-safe. Searches take no lock for a string; additions lock a 64th of the index and the bytes. Remove excludes
// all other calls.
class StringKeys {
 public:
  // The sequence of fingerprints: salt 0 comes first.
  using FingerprintFunction = uint64_t (*)(std::string_view bytes, uint64_t salt);
  // Creates an empty object. Tests use another function, by which many strings have the same fingerprint.
  static Result<std::unique_ptr<StringKeys>> Create(FingerprintFunction fingerprint = &Fingerprint);
  ~StringKeys();

  static int64_t FirstKey(std::string_view bytes) { return static_cast<int64_t>(Fingerprint(bytes, 0)); }

  // Writes the keys, [N], and adds missing strings. Strings may hold any bytes, less than 2^32 of them;
  // INVALID_ARGUMENT for a longer one. RESOURCE_EXHAUSTED without memory.
  Status Intern(std::span<const std::string_view> strings, int64_t* keys, const ParallelFor& parallel);
  // Does the same without adding: a missing string gets the key that it would get now.
  void Find(std::span<const std::string_view> strings, int64_t* keys, const ParallelFor& parallel) const;

  // Reads the bytes of a key; returns false for a missing key.
  bool Bytes(int64_t key, std::string* bytes) const;
  // A snapshot lasts until EndSnapshot, or until the next one begins. During it, BytesInSnapshot returns the string
  // that had the key when the snapshot began, regardless of removals and additions since. For a key that had no string
  // then, it does as Bytes.
  void BeginSnapshot();
  bool BytesInSnapshot(int64_t key, std::string* bytes) const;
  void EndSnapshot();
  // Adds a string under the key with which it was exported. INVALID_ARGUMENT if the key is none of its fingerprints, or
  // belongs to another string.
  Status Restore(std::string_view bytes, int64_t key);
  // Removes the strings of these keys. They must not be in a batch that is interned and not resolved yet.
  void Remove(std::span<const int64_t> keys);

  int64_t size() const { return index_.size(); }
  // Returns the memory of index, strings and their places.
  int64_t bytes() const;

 private:
  struct Entry;
  class Arena;

  explicit StringKeys(FingerprintFunction fingerprint);
  // Returns the key of a known string, or the first free key; in the latter case `entry` is kAbsent.
  int64_t Search(std::string_view bytes, uint32_t* entry) const;
  Result<int64_t> Add(std::string_view bytes);
  // Makes an entry for the string and inserts it under `key`, its fingerprint number `salt`. Returns false if another
  // string has the key.
  Result<bool> Put(std::string_view bytes, int64_t key, uint64_t salt);
  std::string_view BytesOf(uint32_t entry) const;
  bool Present(int64_t key, std::string* bytes) const;
  // Frees the memory of an entry that is not in the index.
  void Free(uint32_t entry);
  void FreeKept() LOCKSTEP_REQUIRES(gate_);

  const FingerprintFunction fingerprint_;
  mutable FairSharedMutex gate_;  // shared: searches and additions; alone: Remove, and a snapshot's begin and end
  KeyIndex index_;                // key -> entry
  Slab entries_;                  // one column: Entry
  RowView entry_{};
  std::unique_ptr<Arena> arena_;
  // The highest salt with which a key was made; nearly always 0. Searches go up to it.
  std::atomic<uint64_t> most_salt_{0};
  bool in_snapshot_ LOCKSTEP_GUARDED_BY(gate_) = false;
  std::unordered_map<int64_t, uint32_t> kept_ LOCKSTEP_GUARDED_BY(gate_);  // keys removed in this snapshot -> entry
};

}  // namespace lockstep
