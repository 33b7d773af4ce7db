#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "core/comm/communicator.h"
#include "core/comm/shm/segment.h"

namespace lockstep::shm {

// Hands out one rank's part of the shared memory. Each rank allocates in its own heap alone and tells its peers the
// offset at every call, so ranks need not allocate alike. First fit over a list of free ranges; neighbours are joined
// when freed. Memory that was used stays with the process for the next buffer: its pages are the expensive part.
// Thread-safe.
class Heap : public std::enable_shared_from_this<Heap> {
 public:
  Heap(std::shared_ptr<Segment> segment, int rank);

  // Null where no free range is large enough. The buffer is aligned to two cache lines and keeps the heap and its
  // segment alive.
  std::shared_ptr<SharedBuffer> Allocate(int64_t bytes);

  // Where [data, data + bytes) lies in the segment, or nothing if it is private memory.
  std::optional<int64_t> OffsetOf(const void* data, int64_t bytes) const;

  // Bytes that are not allocated.
  int64_t FreeBytes() const;

 private:
  class Buffer;
  void Free(int64_t offset, int64_t bytes);

  const std::shared_ptr<Segment> segment_;
  const int64_t begin_;  // of this heap in the segment
  const int64_t end_;
  mutable std::mutex mutex_;
  std::map<int64_t, int64_t> free_;  // offset -> bytes; guarded by mutex_
};

}  // namespace lockstep::shm
