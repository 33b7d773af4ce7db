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

// Allocates `bytes` uninitialised bytes with 64-byte alignment. The caller writes them through `*data` before it shares
// the buffer. TensorFlow requires this alignment of a tensor, so the buffer can become one without a copy.
// RESOURCE_EXHAUSTED without memory.
Result<Buffer> AllocateBuffer(int64_t bytes, void** data);

}  // namespace lockstep::columnar
