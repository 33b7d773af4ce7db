#include "core/comm/shm/copy.h"

#include <emmintrin.h>

#include <cstring>

// Both copies work on cache lines of the target: four loads of 16 bytes, of any alignment, and four aligned stores that
// fill a line. A non-temporal store is fast only if it fills a line: otherwise the line has to be merged with memory.
// Every x86-64 processor has SSE2, so nothing is chosen at run time.

namespace lockstep::shm {
namespace {

constexpr int64_t kLine = 64;

// Copies whole cache lines of `to` by `store`, and the parts before the first and after the last line by memcpy. A
// short range is copied only by memcpy. Head and tail are plain stores, so a line that two copies share is never
// written past the cache.
template <typename Store>
[[gnu::always_inline]] inline void CopyLines(void* to, const void* from, int64_t bytes, Store store) {
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  const int64_t head = bytes < 8 * kLine ? bytes : -reinterpret_cast<intptr_t>(out) & (kLine - 1);
  if (head > 0) std::memcpy(out, in, static_cast<size_t>(head));
  int64_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(in + at);
    auto* target = reinterpret_cast<__m128i*>(out + at);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    store(target, a);
    store(target + 1, b);
    store(target + 2, c);
    store(target + 3, d);
  }
  if (at < bytes) std::memcpy(out + at, in + at, static_cast<size_t>(bytes - at));
}

}  // namespace

void CopyStreaming(void* to, const void* from, int64_t bytes) {
  CopyLines(to, from, bytes, [](__m128i* target, __m128i value) { _mm_stream_si128(target, value); });
  // These stores are not ordered with later ones, such as the store of the flag for "done".
  _mm_sfence();
}

void CopyCached(void* to, const void* from, int64_t bytes) {
  CopyLines(to, from, bytes, [](__m128i* target, __m128i value) { _mm_store_si128(target, value); });
}

}  // namespace lockstep::shm
