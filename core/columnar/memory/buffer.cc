#include "core/columnar/memory/buffer.h"

#include <atomic>
#include <cstdlib>
#include <string>

namespace lockstep::columnar {
namespace {

Result<Buffer> AllocateFromC(int64_t bytes, void** data) {
  // The size has to be a multiple of the alignment, and may not be 0.
  const int64_t rounded = (bytes / kBufferAlignment + 1) * kBufferAlignment;
  void* const allocated = std::aligned_alloc(kBufferAlignment, static_cast<size_t>(rounded));
  if (allocated == nullptr) {
    return ResourceExhausted("no memory for a column buffer of " + std::to_string(bytes) + " bytes");
  }
  *data = allocated;
  return Buffer{allocated, bytes,
                std::shared_ptr<const void>(allocated, [](const void* p) { std::free(const_cast<void*>(p)); })};
}

std::atomic<Allocator> current{&AllocateFromC};

}  // namespace

Result<Buffer> AllocateBuffer(int64_t bytes, void** data) { return current.load()(bytes, data); }

void UseAllocator(Allocator allocator) { current.store(allocator); }

}  // namespace lockstep::columnar
