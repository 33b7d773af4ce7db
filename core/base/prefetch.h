#pragma once

#include <cstdint>

namespace lockstep {

// Asks for the cache line of `address`, to be read or written soon; any address will do. The empty statement of
// assembly keeps the compiler from taking a function that only prefetches for one without effect, whose calls it would
// drop.
[[gnu::always_inline]] inline void PrefetchForRead(const void* address) {
  __builtin_prefetch(address);
  asm volatile("");
}

[[gnu::always_inline]] inline void PrefetchForWrite(const void* address) {
  __builtin_prefetch(address, 1);
  asm volatile("");
}

// The same of all lines of `bytes` bytes.
[[gnu::always_inline]] inline void PrefetchForRead(const void* address, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += 64) PrefetchForRead(static_cast<const char*>(address) + line);
}

[[gnu::always_inline]] inline void PrefetchForWrite(const void* address, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += 64) PrefetchForWrite(static_cast<const char*>(address) + line);
}

}  // namespace lockstep
