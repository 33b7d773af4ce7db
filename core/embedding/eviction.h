#pragma once

#include <cstdint>
#include <optional>

#include "core/base/status.h"

namespace lockstep {

// Which keys a table lets go while training goes on, in bounded work: a call of DynamicTable::Evict looks at
// `keys_per_call` keys and goes on where the one before ended, in the order of the keys' hashes; so a table is gone
// through once every size / keys_per_call steps, and which keys a call looks at doesn't depend on threads. Every
// condition that is set takes keys; keys that are counted until they are admitted go by age alone.
//
// The budget is kept in every call: as many keys as are too many go, taken from the coldest eighth of those looked at
// (and of further ones, if need be). So what goes is among the coldest, not always the coldest of all: the usual
// approximation, without a list that every lookup would have to keep in order.
//
// Frequencies age in a table with a budget by kLfu, or one that is full would keep for ever what was frequent once, and
// nothing that is new could live to be seen twice: when as many keys have gone for the budget as it may hold, those of
// all keys are halved, the next time that the table is gone through. A key that is not seen any more is down to 0 when
// the table's keys have been exchanged log2(its frequency) + 1 times.
struct EvictionOptions {
  enum class Order : uint8_t {
    kLru,  // the longest unseen first
    kLfu,  // the least frequent of late first; of equals the longest unseen, where versions are recorded
  };

  std::optional<int64_t> steps_to_live = std::nullopt;    // goes when it was last seen more than so many steps ago
  std::optional<int64_t> seconds_to_live = std::nullopt;  // ... more than so many seconds ago, by the caller's clock
  std::optional<float> l2_threshold = std::nullopt;       // goes when the norm of its row is less
  std::optional<int64_t> max_keys = std::nullopt;         // admitted keys
  std::optional<int64_t> max_bytes =
      std::nullopt;  // memory of admitted keys: rows, slots, counts, and 24 bytes of the index each
  Order order = Order::kLru;
  int64_t keys_per_call = 16384;  // more: keys go sooner, and a step takes longer (some 20 to 50 ns a key)

  // Whether keys ever go.
  bool any() const { return steps_to_live || seconds_to_live || l2_threshold || budget(); }
  bool budget() const { return max_keys.has_value() || max_bytes.has_value(); }
  // What has to be recorded of keys.
  bool needs_version() const { return steps_to_live.has_value() || (budget() && order == Order::kLru); }
  bool needs_frequency() const { return budget() && order == Order::kLfu; }
  // INVALID_ARGUMENT for a negative number, or no keys per call.
  Status Validate() const;
};

// How far eviction has got through a table. With it a table that was restored lets the same keys go in the same calls
// as one that went on.
struct EvictionSweep {
  uint64_t next = 0;   // the hash to go on at; 0: the next call begins anew
  uint64_t width = 0;  // the range of hashes that a call looks at; 0 only where the next call begins anew
  int64_t went = 0;    // keys that went for the budget since frequencies were halved
  bool ages = false;   // this time through the table they are

  // INVALID_ARGUMENT for what no table ever says.
  Status Validate() const;
};

}  // namespace lockstep
