#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "core/embedding/index.h"

namespace lockstep {

// The number of keys that are searched under one guard of the index.
inline constexpr int64_t kGuardedKeys = 4096;
// The smallest number of keys for which a thread pays.
inline constexpr int64_t kSearchGrain = 2048;

// Finds the values of places [begin, end) of `keys`. Calls prefetch(i, value) for each key of a group, and then
// visit(first, count, values) for the group. The next group is located before this one is searched, which doubles the
// number of concurrent cache misses.
template <typename Prefetch, typename Visit>
void ForEachGroup(const KeyIndex& index, std::span<const int64_t> keys, int64_t begin, int64_t end, Prefetch&& prefetch,
                  Visit&& visit) {
  constexpr int64_t kGroup = KeyIndex::kGroup;
  std::array<KeyIndex::Place, kGroup> places[2];
  for (int64_t guarded = begin; guarded < end; guarded += kGuardedKeys) {
    const KeyIndex::ReadGuard guard = index.Read();
    const int64_t stop = std::min(end, guarded + kGuardedKeys);
    const auto locate = [&](int64_t first, auto& group) {
      const int64_t count = std::min(kGroup, stop - first);
      for (int64_t i = 0; i < count; ++i) group[i] = index.Locate(keys[first + i]);
    };
    locate(guarded, places[0]);
    for (int64_t first = guarded, turn = 0; first < stop; first += kGroup, ++turn) {
      locate(first + kGroup, places[(turn + 1) & 1]);
      const int64_t count = std::min(kGroup, stop - first);
      uint32_t values[kGroup];
      for (int64_t i = 0; i < count; ++i) {
        values[i] = KeyIndex::Find(places[turn & 1][i], keys[first + i]);
        prefetch(i, values[i]);
      }
      visit(first, count, values);
    }
  }
}

}  // namespace lockstep
