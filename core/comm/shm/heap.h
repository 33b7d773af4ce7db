#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "core/comm/collective/communicator.h"
#include "core/comm/shm/segment.h"

namespace lockstep::shm {

// Hands out one rank's part of the shared memory. Each rank allocates in its own heap alone and tells its peers the
// offset at every call, so ranks need not allocate alike.
//
// First fit over a list of free ranges, from the lowest offset on; neighbours are joined when freed. So what is in use
// stays at the low end, and buffers that come and go in every step are given the same pages again: memory that was used
// stays with the process for the next buffer, as its pages are the expensive part. Costs a walk over the free ranges,
// of which there are few, as buckets are few and large.
//
//   const auto heap = std::make_shared<Heap>(segment, rank);  // always by shared_ptr: buffers hold a share
//   if (const std::shared_ptr<SharedBuffer> buffer = heap->Allocate(bytes)) Pack(buffer->data());
//
// Which ranges are free is known to this process and is not in the segment: nobody else, and no fork, may allocate
// here. Thread-safe; buffers are freed on whatever thread lets go of them.
class Heap : public std::enable_shared_from_this<Heap> {
 public:
  Heap(std::shared_ptr<Segment> segment, int rank);

  // Null where no free range is large enough, or `bytes` is negative. The buffer is aligned to two cache lines and
  // keeps the heap and its segment alive. Sizes are rounded up to that alignment; 0 bytes take as much as 1.
  std::shared_ptr<SharedBuffer> Allocate(int64_t bytes);

  // Where [data, data + bytes) lies in the segment, or nothing if it is private memory (or not wholly in this rank's
  // heap). Any part of a buffer will do. A comparison of addresses, without the lock.
  std::optional<int64_t> OffsetOf(const void* data, int64_t bytes) const;

  // Bytes that are not allocated, in however many pieces: a buffer of that size need not be possible.
  int64_t FreeBytes() const;

 private:
  // The handle of a range: frees it when the last owner lets go.
  class Buffer;
  // Gives [offset, offset + bytes) back. It was allocated, and is so no more.
  void Free(int64_t offset, int64_t bytes);

  const std::shared_ptr<Segment> segment_;
  const int64_t begin_;  // of this heap in the segment
  const int64_t end_;
  mutable std::mutex mutex_;
  std::map<int64_t, int64_t> free_;  // offset -> bytes; guarded by mutex_
};

}  // namespace lockstep::shm
