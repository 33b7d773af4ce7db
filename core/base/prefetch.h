#pragma once

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

}  // namespace lockstep
