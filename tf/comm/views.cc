#include "tf/comm/views.h"

#include <atomic>
#include <utility>

namespace lockstep {
namespace {

// The bytes of shared memory that views hold in this process. The counter orders no other memory.
std::atomic<int64_t> g_view_bytes{0};

// A SharedBuffer that counts while it lives.
class ViewedBuffer : public SharedBuffer {
 public:
  explicit ViewedBuffer(std::shared_ptr<SharedBuffer> memory) : memory_(std::move(memory)) {}
  ~ViewedBuffer() override { g_view_bytes -= memory_->bytes(); }
  void* data() override { return memory_->data(); }
  int64_t bytes() const override { return memory_->bytes(); }

 private:
  const std::shared_ptr<SharedBuffer> memory_;
};

}  // namespace

// Several lanes may call it at once, so the bytes are added first, and subtracted again if they exceed the limit.
std::shared_ptr<SharedBuffer> ForViews(std::shared_ptr<SharedBuffer> memory, int64_t limit_bytes) {
  if (memory == nullptr) return nullptr;
  const int64_t bytes = memory->bytes();
  if (g_view_bytes.fetch_add(bytes) + bytes <= limit_bytes) return std::make_shared<ViewedBuffer>(std::move(memory));
  g_view_bytes -= bytes;
  return nullptr;
}

}  // namespace lockstep
