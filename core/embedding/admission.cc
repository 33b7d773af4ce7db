#include "core/embedding/admission.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/base/hash.h"
#include "core/base/strings.h"

namespace lockstep {

Status AdmissionOptions::Validate() const {
  if (min_frequency < 0 || min_frequency > std::numeric_limits<uint32_t>::max()) {
    return InvalidArgument(StrCat("admission: min_frequency ", min_frequency, ", wanted 0 to 2^32 - 1"));
  }
  if (bloom_keys.has_value() != bloom_false_positives.has_value()) {
    return InvalidArgument("admission: got one of bloom_keys and bloom_false_positives, wanted both or neither");
  }
  if (bloom_keys && (*bloom_keys < 1 || *bloom_keys > int64_t{1} << 40 ||
                     !(*bloom_false_positives > 0 && *bloom_false_positives < 1))) {
    return InvalidArgument(StrCat("admission: a Bloom filter for ", *bloom_keys, " keys with ", *bloom_false_positives,
                                  " false positives, wanted 1 to 2^40 keys and a share between 0 and 1"));
  }
  return OkStatus();
}

Result<std::unique_ptr<CountingBloomFilter>> CountingBloomFilter::Create(const AdmissionOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(options.Validate());
  if (!options.bloom_keys) return InvalidArgument("admission: a Bloom filter without bloom_keys");
  const double p = *options.bloom_false_positives, ln2 = std::log(2.0);
  const int hashes = static_cast<int>(std::ceil(std::fabs(std::log2(p))));
  const auto counters =
      static_cast<int64_t>(std::ceil(std::fabs(std::log(p)) / (ln2 * ln2) * static_cast<double>(*options.bloom_keys)));
  const int width = options.min_frequency <= 0xFF ? 1 : options.min_frequency <= 0xFFFF ? 2 : 4;
  LOCKSTEP_ASSIGN_OR_RETURN(Pages pages, Pages::Allocate(counters * width));
  return std::unique_ptr<CountingBloomFilter>(
      new CountingBloomFilter(hashes, counters, width, options.min_frequency, std::move(pages)));
}

// Calls `work` with the counters as an array of their type.
template <typename Work>
decltype(auto) CountingBloomFilter::WithCounters(Work&& work) const {
  switch (width_) {
    case 1: return work(reinterpret_cast<uint8_t*>(pages_.data()));
    case 2: return work(reinterpret_cast<uint16_t*>(pages_.data()));
    default: return work(reinterpret_cast<uint32_t*>(pages_.data()));
  }
}

// Double hashing (Kirsch and Mitzenmacher, 2006): two hashes give all others.
int64_t CountingBloomFilter::Place(uint64_t hash, int i) const {
  const uint64_t mixed = hash + static_cast<uint64_t>(i) * (MixBits(hash + 1) | 1);
  return static_cast<int64_t>(static_cast<unsigned __int128>(mixed) * static_cast<uint64_t>(counters_) >> 64);
}

void CountingBloomFilter::Add(int64_t key, int64_t times) {
  const uint64_t hash = MixBits(static_cast<uint64_t>(key) ^ 0xB5297A4D3F84D5B5u);
  WithCounters([&](auto* counters) {
    for (int i = 0; i < hashes_; ++i) {
      std::atomic_ref counter(counters[Place(hash, i)]);
      auto count = counter.load(std::memory_order_relaxed);
      decltype(count) next;
      do {
        next = static_cast<decltype(count)>(std::min<int64_t>(limit_, static_cast<int64_t>(count) + times));
      } while (count < next && !counter.compare_exchange_weak(count, next, std::memory_order_relaxed));
    }
  });
}

int64_t CountingBloomFilter::Count(int64_t key) const {
  const uint64_t hash = MixBits(static_cast<uint64_t>(key) ^ 0xB5297A4D3F84D5B5u);
  return WithCounters([&](auto* counters) {
    int64_t least = limit_;
    for (int i = 0; i < hashes_; ++i) {
      const std::atomic_ref counter(counters[Place(hash, i)]);
      least = std::min<int64_t>(least, counter.load(std::memory_order_relaxed));
    }
    return least;
  });
}

std::span<const uint8_t> CountingBloomFilter::bytes() const {
  return {reinterpret_cast<const uint8_t*>(pages_.data()), static_cast<size_t>(counters_ * width_)};
}

Status CountingBloomFilter::Merge(std::span<const uint8_t> other) {
  if (other.size() != bytes().size()) {
    return InvalidArgument(StrCat("admission: a Bloom filter of ", other.size(), " bytes, wanted ", bytes().size(),
                                  ": filters are restored with the options that they were saved with"));
  }
  WithCounters([&](auto* counters) {
    using Counter = std::remove_pointer_t<decltype(counters)>;
    for (int64_t i = 0; i < counters_; ++i) {
      Counter theirs;
      std::memcpy(&theirs, other.data() + i * width_, sizeof(theirs));
      counters[i] = std::max(counters[i], theirs);
    }
  });
  return OkStatus();
}

}  // namespace lockstep
