// Buffers come from Arrow's pool, like Arrow's decoded data, because the pool keeps pages that were given back. The
// lists of a batch take megabytes; the C library would ask the kernel for fresh, zeroed pages each time.
#include "core/columnar/arrow/pool.h"

#include <arrow/memory_pool.h>

#include <string>

namespace lockstep::columnar {

Result<Buffer> AllocateFromArrow(int64_t bytes, void** data) {
  arrow::MemoryPool* const pool = arrow::default_memory_pool();
  uint8_t* allocated = nullptr;
  if (!pool->Allocate(bytes, kBufferAlignment, &allocated).ok()) {
    return ResourceExhausted("no memory for a column buffer of " + std::to_string(bytes) + " bytes");
  }
  *data = allocated;
  return Buffer{allocated, bytes, std::shared_ptr<const void>(allocated, [pool, bytes](const void* p) {
                  pool->Free(static_cast<uint8_t*>(const_cast<void*>(p)), bytes, kBufferAlignment);
                })};
}

}  // namespace lockstep::columnar
