#pragma once

#include <cstdint>
#include <optional>

#include "core/base/status.h"

namespace lockstep {

// Selects the keys that a table removes during training, in bounded work. A call of DynamicTable::Evict examines
// `keys_per_call` keys and continues where the last call ended, in the order of the keys' hashes. So a sweep through
// the table takes size / keys_per_call steps, and the keys of a call do not depend on threads. Every condition that is
// set removes keys. Candidates (keys that are counted until they are admitted) are removed only by age.
//
// Every call keeps the budget: it removes the excess number of keys from the coldest eighth of the examined keys, and
// of further keys if needed. So evicted keys are among the coldest, but not always the coldest of all. This is the
// usual approximation; it needs no ordered list that every lookup would have to update.
//
// With a budget and kLfu, frequencies age. Otherwise a full table would keep former frequent keys for ever, and remove
// each new key before it is seen twice. When the number of keys evicted for the budget reaches the budget, the next
// sweep halves the frequencies of all keys. The frequency of a key that is not seen any more falls to 0 when the
// table's keys have been replaced log2(its frequency) + 1 times.
struct EvictionOptions {
  enum class Order : uint8_t {
    kLru,  // the least recently seen first
    kLfu,  // the least frequent first; among equals the least recently seen, if versions are recorded
  };

  std::optional<int64_t> steps_to_live = std::nullopt;    // evicts keys last seen more than so many steps ago
  std::optional<int64_t> seconds_to_live = std::nullopt;  // ... more than so many seconds ago, by the caller's clock
  std::optional<float> l2_threshold = std::nullopt;       // evicts keys whose row has a smaller norm
  std::optional<int64_t> max_keys = std::nullopt;         // limit of admitted keys
  std::optional<int64_t> max_bytes =
      std::nullopt;  // limit of their memory: rows, slots, counts, and 24 bytes of the index each
  Order order = Order::kLru;
  int64_t keys_per_call = 16384;  // more: keys go sooner, and a step takes longer (20 to 50 ns per key)

  // Returns whether keys are ever evicted.
  bool any() const { return steps_to_live || seconds_to_live || l2_threshold || budget(); }
  bool budget() const { return max_keys.has_value() || max_bytes.has_value(); }
  // Return what has to be recorded of keys.
  bool needs_version() const { return steps_to_live.has_value() || (budget() && order == Order::kLru); }
  bool needs_frequency() const { return budget() && order == Order::kLfu; }
  // Returns INVALID_ARGUMENT for a negative number, or no keys per call.
  Status Validate() const;
};

// The progress of eviction through a table. With it, a restored table evicts the same keys in the same calls as the
// original.
struct EvictionSweep {
  uint64_t next = 0;   // the hash to continue at; a sweep goes from hash 0 to the largest
  uint64_t width = 0;  // the range of hashes of a call; before the first sweep there is none
  int64_t went = 0;    // keys evicted for the budget since frequencies were halved
  bool ages = false;   // this sweep halves frequencies

  // Returns whether the next call begins a new sweep.
  bool begins() const { return next == 0; }
  // Returns INVALID_ARGUMENT for values that no table can have.
  Status Validate() const;
};

}  // namespace lockstep
