#pragma once

#include <cstdint>

namespace lockstep::shm {

// The two ways to copy between ranks. Ranges must not overlap; any alignment, null for no bytes.

// The two ways to copy between ranks. Ranges must not overlap; any alignment, null for no bytes. Pure functions;
// thread-safe. Below 512 bytes both are memcpy.
//
// Past the caches ("non-temporal" stores). For memory that a peer has read, or will read, before this core needs it
// again: a plain store first fetches the line from the peer's cache, which costs as much as the peer's reading.
// Measured on two cores of an EPYC, 32 KiB into lines that the peer has read take 4.4 us by memcpy and 1.2 us so, and
// the peer reads them equally fast. For large results it saves reading the old contents from memory.
//
// Such stores are not ordered with others by themselves; it ends with a fence, so that a flag that is raised afterwards
// says the truth.
void CopyStreaming(void* to, const void* from, int64_t bytes);

// Into the caches. Not memcpy, which for these sizes uses "rep movsb", and is four times slower on some processors
// where `to` lies a little behind `from` modulo 4096, as the results of malloc do behind pages of shared memory.
void CopyCached(void* to, const void* from, int64_t bytes);

// Results of at least this size are not expected to be read out of a cache soon.
inline constexpr int64_t kLargeBytes = 4 << 20;

// To a part of a rank's own result of `total` bytes: past the caches where it is large. It is the whole result that
// counts, and not the part: many small parts of a large one would push each other out of the cache as well.
inline void CopyToResult(void* to, const void* from, int64_t bytes, int64_t total) {
  total >= kLargeBytes ? CopyStreaming(to, from, bytes) : CopyCached(to, from, bytes);
}

}  // namespace lockstep::shm
