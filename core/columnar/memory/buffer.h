#pragma once

#include <cstdint>
#include <memory>

#include "core/base/status.h"

namespace lockstep::columnar {

// Bytes and their owner. `data` may point into the middle of the owner's memory (a slice, or memory that Arrow
// allocated), so it has the alignment of its type, but not more. A shared buffer is never written again, so any thread
// may read it. `data` may be null if `bytes` is 0.
struct Buffer {
  const void* data = nullptr;
  int64_t bytes = 0;
  std::shared_ptr<const void> owner;

  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
};

// The alignment of allocated buffers: a cache line, the width of the widest vector registers, and the alignment that
// TensorFlow expects of a tensor.
inline constexpr int64_t kBufferAlignment = 64;

// Allocates `bytes` uninitialised bytes with kBufferAlignment. The caller writes them through `*data` before it shares
// the buffer. TensorFlow requires this alignment of a tensor, so the buffer can become one without a copy.
// RESOURCE_EXHAUSTED without memory. Thread-safe.
Result<Buffer> AllocateBuffer(int64_t bytes, void** data);

// Allocates with the contract of AllocateBuffer.
using Allocator = Result<Buffer> (*)(int64_t bytes, void** data);

// Makes AllocateBuffer call `allocator`, which must live as long as the process; buffers that exist keep their own
// owners. Before the first call, memory comes from the C library. The library for Arrow offers Arrow's pool (files/).
void UseAllocator(Allocator allocator);

}  // namespace lockstep::columnar
