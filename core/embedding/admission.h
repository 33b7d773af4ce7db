#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "core/base/status.h"
#include "core/embedding/pages.h"

namespace lockstep {

// Which keys a table takes in: those that have been seen often enough in training. Until then a key has no row; reading
// it gives the table's default value, and updates of it are dropped.
//
//   exact           every key that is seen is counted beside the index: 13 to 20 bytes a key, and its frequency and
//                   version are known from the first time on
//   counting Bloom  a fixed number of counters for all keys together: keys that share their counters with others may be
//                   taken in early, never late
//
// A batch is counted as a whole before it is judged, so that all places of a key in it are treated alike, whatever the
// threads.
struct AdmissionOptions {
  // Times a key has to be seen. 0 and 1 take in every key at once.
  int64_t min_frequency = 0;
  // With both, the filter is a counting Bloom filter, of the sizes that DeepRec gives it for these numbers.
  std::optional<int64_t> bloom_keys = std::nullopt;  // how many keys it is made for
  std::optional<double> bloom_false_positives =
      std::nullopt;  // the share of keys that are taken in early, when it holds so many

  bool counts() const { return min_frequency > 1; }
  bool bloom() const { return counts() && bloom_keys.has_value(); }
  // INVALID_ARGUMENT for a negative frequency or one above 2^32 - 1, or for one size without the other, or out of
  // range.
  Status Validate() const;
};

// A counting Bloom filter (Fan et al., 2000): a key adds to `hashes` counters; the least of them is at least its count.
// Counters are of 1, 2 or 4 bytes, as few as hold the frequency that matters, and stop there. Thread-safe.
class CountingBloomFilter {
 public:
  // For n keys and p false positives: ceil(|log2 p|) hashes, ceil(n |ln p| / ln(2)^2) counters.
  static Result<std::unique_ptr<CountingBloomFilter>> Create(const AdmissionOptions& options);

  // Counts the key `times` more.
  void Add(int64_t key, int64_t times);
  // At least how often the key has been counted, up to the frequency that matters.
  int64_t Count(int64_t key) const;

  int hashes() const { return hashes_; }
  int64_t counters() const { return counters_; }
  // Of the counters: what a checkpoint holds.
  std::span<const uint8_t> bytes() const;
  // Makes every counter as large as that of `other` at least: [bytes()] of a filter of the same options. The maximum of
  // the filters of several workers counts no key less often than its worker did. INVALID_ARGUMENT for another size.
  Status Merge(std::span<const uint8_t> other);

 private:
  CountingBloomFilter(int hashes, int64_t counters, int width, int64_t limit, Pages pages)
      : hashes_(hashes), counters_(counters), width_(width), limit_(limit), pages_(std::move(pages)) {}

  template <typename Work>
  decltype(auto) WithCounters(Work&& work) const;
  // The place of hash number `i`.
  int64_t Place(uint64_t hash, int i) const;

  const int hashes_;
  const int64_t counters_;
  const int width_;      // bytes of a counter
  const int64_t limit_;  // where counters stop
  Pages pages_;
};

}  // namespace lockstep
