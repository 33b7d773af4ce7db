#pragma once

#include <emmintrin.h>

#include <cstdint>

namespace lockstep {

// Stores that bypass the caches, for output that is larger than the caches. The written line is not read first, and no
// other line is evicted. A thread that hands the output to another thread calls StreamFence first.
inline constexpr int64_t kStreamedLine = 64;

inline bool IsLineAligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(kStreamedLine) == 0;
}

// Stores 64 bytes; `to` is aligned to 64 bytes.
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
