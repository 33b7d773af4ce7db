#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "core/base/pages.h"
#include "core/base/status.h"

namespace lockstep {

// The rule by which a table admits keys: those that training has seen often enough. Until then a key has no row:
// reading it gives the table's default value, and updates of it are dropped.
//
//   exact           every key that is seen is counted beside the index, with 13 to 20 bytes per key; its frequency and
//                   version are known from the first time on
//   counting Bloom  a fixed number of counters for all keys together; a key that shares its counters with others may be
//                   admitted early, never late
//
// A batch is counted as a whole before it is judged. So all places of a key in it get the same result, regardless of
// the threads.
struct AdmissionOptions {
  // The number of times that a key has to be seen. 0 and 1 admit every key at once.
  int64_t min_frequency = 0;
  // If both are set, keys are counted in a counting Bloom filter of the sizes that DeepRec uses for these numbers.
  std::optional<int64_t> bloom_keys = std::nullopt;  // the number of keys that it is made for
  std::optional<double> bloom_false_positives =
      std::nullopt;  // the share of keys that are admitted early at that number

  bool counts() const { return min_frequency > 1; }
  bool bloom() const { return counts() && bloom_keys.has_value(); }
  // Returns INVALID_ARGUMENT for a negative frequency or one above 2^32 - 1, and for a filter size that is out of range
  // or without the other one.
  Status Validate() const;
};

// A counting Bloom filter (Fan et al., 2000). A key adds to `hashes` counters; the least of them is at least its count.
// Counters have 1, 2 or 4 bytes, the fewest that hold the limit, and stop at the limit. Thread-safe.
class CountingBloomFilter {
 public:
  // Creates a filter for n keys and p false positives: ceil(|log2 p|) hashes, ceil(n |ln p| / ln(2)^2) counters.
  static Result<std::unique_ptr<CountingBloomFilter>> Create(const AdmissionOptions& options);

  // Adds `times` to the key's count.
  void Add(int64_t key, int64_t times);
  // Returns at least the key's count, up to the limit.
  int64_t Count(int64_t key) const;

  int hashes() const { return hashes_; }
  int64_t counters() const { return counters_; }
  // Returns the bytes of the counters, which a checkpoint holds.
  std::span<const uint8_t> bytes() const;
  // Raises every counter to at least the one of `other`, the bytes() of a filter with the same options. The maximum of
  // several workers' filters counts no key less often than its worker did. INVALID_ARGUMENT for another size.
  Status Merge(std::span<const uint8_t> other);

 private:
  CountingBloomFilter(int hashes, int64_t counters, int width, int64_t limit, Pages pages)
      : hashes_(hashes), counters_(counters), width_(width), limit_(limit), pages_(std::move(pages)) {}

  template <typename Work>
  decltype(auto) WithCounters(Work&& work) const;
  // Returns the position of hash number `i`.
  int64_t Place(uint64_t hash, int i) const;

  const int hashes_;
  const int64_t counters_;
  const int width_;      // bytes of a counter
  const int64_t limit_;  // where counters stop
  Pages pages_;
};

}  // namespace lockstep
