#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "core/base/free_ranges.h"
#include "core/base/mutex.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/shm/segment.h"

namespace lockstep::shm {

// Allocates one rank's part of the shared memory. Each rank allocates only in its own heap and tells its peers the
// offset at every call, so ranks need not allocate alike.
//
// First fit (core/base/free_ranges.h), so buffers that come and go in every step get the same pages again. Pages that
// were used stay with the process, because new pages are the expensive part. There are few free ranges to walk over,
// because buckets are few and large.
// ```cpp
// const auto heap = std::make_shared<Heap>(segment, rank);  // always by shared_ptr: buffers hold a share
// if (const std::shared_ptr<SharedBuffer> buffer = heap->Allocate(bytes)) Pack(buffer->data());
// ```
// Only this process knows which ranges are free; the list is not in the segment. No other process, and no fork, may
// allocate here. Thread-safe; any thread may free buffers.
class Heap : public std::enable_shared_from_this<Heap> {
 public:
  Heap(std::shared_ptr<Segment> segment, int rank);

  // Returns null if no free range is large enough, or `bytes` is negative. The buffer is aligned to two cache lines and
  // keeps the heap and its segment alive. Sizes are rounded up to that alignment; 0 bytes take as much as 1.
  std::shared_ptr<SharedBuffer> Allocate(int64_t bytes);

  // Returns the offset of [data, data + bytes) in the segment, or nothing for private memory (or a range not wholly in
  // this rank's heap). Any part of a buffer is allowed. Compares addresses, without the lock.
  std::optional<int64_t> OffsetOf(const void* data, int64_t bytes) const;

  // Returns the number of bytes that are not allocated, in any number of pieces: a buffer of that size may not be
  // possible.
  int64_t FreeBytes() const;

 private:
  // The owner of a range: frees it when its last owner is destroyed.
  class Buffer;
  // Frees [offset, offset + bytes), which was allocated.
  void Free(int64_t offset, int64_t bytes);

  const std::shared_ptr<Segment> segment_;
  const int64_t begin_;  // offset of this heap in the segment
  const int64_t end_;
  mutable Mutex mutex_;
  FreeRanges free_ LOCKSTEP_GUARDED_BY(mutex_);  // offsets in the segment
};

}  // namespace lockstep::shm
