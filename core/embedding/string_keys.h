#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/base/hash.h"
#include "core/base/parallel.h"
#include "core/base/status.h"
#include "core/embedding/gate.h"
#include "core/embedding/index.h"
#include "core/embedding/slab.h"

namespace lockstep {

// String keys for a table of int64 keys: gives every string an int64 of its own, and keeps its bytes, so that they can
// be exported and restored.
//
// A string's key is a fingerprint of its bytes: the same on every worker and in every run, so that initial values
// depend on the string alone. Every search compares the bytes. Should another string have the key already (with a
// billion strings: a chance of 3 %), the next of a sequence of fingerprints is taken; so two strings are never one key,
// and only in that case does a key depend on who came first. Workers that share out strings do so by the first
// fingerprint, FirstKey, which is a function of the string in any case; then strings that compete for a key have one
// owner.
//
//   strings.Intern(batch, keys, parallel);  table.Resolve(keys, ...);     // training
//   strings.Find(batch, keys, parallel);    table.Lookup(keys, ...);      // evaluation: adds nothing
//   strings.Remove(table.Evict(now));                                     // keys that went
//
// A snapshot of the table wants the strings as they were when it began, and reads them later: from BeginMoment to
// EndMoment strings that are removed stay readable by BytesAtMoment, and in memory.
//
// Keys that a Bloom filter has not admitted are nowhere in the table, so Evict never names them: their strings are
// removed after the step (those of kNoRow), or they would stay for ever.
//
// Bytes lie in blocks that never move; a block is freed when all of its strings have gone, and until then others take
// their places. A string takes its bytes, rounded up to a multiple of 8 or by an eighth, and some 45 bytes more.
// Thread-safe: searches take no lock for a string, additions one for a 64th of the index and one for the bytes; Remove
// waits for the others, and they for it.
class StringKeys {
 public:
  // The fingerprints: of salt 0 first.
  using FingerprintFunction = uint64_t (*)(std::string_view bytes, uint64_t salt);
  // With another function than the default for tests, in which many strings have the same.
  static Result<std::unique_ptr<StringKeys>> Create(FingerprintFunction fingerprint = &Fingerprint);
  ~StringKeys();

  static int64_t FirstKey(std::string_view bytes) { return static_cast<int64_t>(Fingerprint(bytes, 0)); }

  // keys: [N], written. Strings are of less than 2^32 bytes, any bytes; INVALID_ARGUMENT for a longer one.
  // RESOURCE_EXHAUSTED without memory.
  Status Intern(std::span<const std::string_view> strings, int64_t* keys, const ParallelFor& parallel);
  // The same without adding: strings that are not there have the key that they would get now.
  void Find(std::span<const std::string_view> strings, int64_t* keys, const ParallelFor& parallel) const;

  // The bytes of a key; false for one that is not there.
  bool Bytes(int64_t key, std::string* bytes) const;
  // A moment lasts until EndMoment, or until the next one begins. In it, BytesAtMoment gives the string that had the
  // key when it began, whatever has gone and come since; of a key that nobody had then, what Bytes gives.
  void BeginMoment();
  bool BytesAtMoment(int64_t key, std::string* bytes) const;
  void EndMoment();
  // Puts a string in under the key that it was exported with. INVALID_ARGUMENT where that is none of its fingerprints,
  // or another string has it.
  Status Restore(std::string_view bytes, int64_t key);
  // Forgets the strings of these keys. No batch that was interned and not resolved yet may have them.
  void Remove(std::span<const int64_t> keys);

  int64_t size() const { return index_.size(); }
  // Memory of index, strings and their places.
  int64_t bytes() const;

 private:
  struct Entry;
  class Arena;

  explicit StringKeys(FingerprintFunction fingerprint);
  // The key of a string that is there, or the first that is free; `entry`: kAbsent for the latter.
  int64_t Search(std::string_view bytes, uint32_t* entry) const;
  Result<int64_t> Add(std::string_view bytes);
  // Makes an entry for the string and puts it in under `key`, its fingerprint number `salt`; false where another string
  // has the key.
  Result<bool> Put(std::string_view bytes, int64_t key, uint64_t salt);
  std::string_view BytesOf(uint32_t entry) const;
  bool Present(int64_t key, std::string* bytes) const;
  // Gives what an entry takes back; it is not in the index.
  void Free(uint32_t entry);
  void FreeKept();

  const FingerprintFunction fingerprint_;
  mutable Gate gate_;  // shared: searches and additions; alone: Remove, and a moment's begin and end
  KeyIndex index_;     // key -> entry
  Slab entries_;       // one column: Entry
  RowView entry_{};
  std::unique_ptr<Arena> arena_;
  // The highest salt that a key was made with; nearly always 0. Searches go so far.
  std::atomic<uint64_t> most_salt_{0};
  bool in_moment_ = false;                      // guarded by gate_
  std::unordered_map<int64_t, uint32_t> kept_;  // guarded by gate_: keys that went in this moment -> entry
};

}  // namespace lockstep
