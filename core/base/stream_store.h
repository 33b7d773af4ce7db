#pragma once

#include <emmintrin.h>

#include <cstdint>

namespace lockstep {

// Stores that go around the caches, for output that is larger than what they would keep of it: the line that is written
// is not read first, and nothing else is driven out. Whoever hands the output to another thread fences before.
inline constexpr int64_t kStreamedLine = 64;

inline bool IsLineAligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(kStreamedLine) == 0;
}

// 64 bytes; `to` is aligned to them.
inline void StreamLine(const void* from, void* to) {
  const auto* in = static_cast<const __m128i*>(from);
  auto* out = static_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
                d = _mm_loadu_si128(in + 3);
  _mm_stream_si128(out, a);
  _mm_stream_si128(out + 1, b);
  _mm_stream_si128(out + 2, c);
  _mm_stream_si128(out + 3, d);
}

inline void StreamFence() { _mm_sfence(); }

}  // namespace lockstep
