#pragma once

#include <cstdint>

namespace lockstep {

// Prefetches the cache line of `address`, which will be read or written soon; any address is allowed. The empty
// assembly statement keeps the compiler from treating a function that only prefetches as one without effect, and
// dropping its calls.
[[gnu::always_inline]] inline void PrefetchForRead(const void* address) {
  __builtin_prefetch(address);
  asm volatile("");
}

[[gnu::always_inline]] inline void PrefetchForWrite(const void* address) {
  __builtin_prefetch(address, 1);
  asm volatile("");
}

// The same for all lines of `bytes` bytes.
[[gnu::always_inline]] inline void PrefetchForRead(const void* address, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += 64) PrefetchForRead(static_cast<const char*>(address) + line);
}

[[gnu::always_inline]] inline void PrefetchForWrite(const void* address, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += 64) PrefetchForWrite(static_cast<const char*>(address) + line);
}

}  // namespace lockstep
