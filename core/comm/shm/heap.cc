#include "core/comm/shm/heap.h"

#include <algorithm>

namespace lockstep::shm {
namespace {

// No two buffers share a cache line, or a pair of lines that the hardware fetches together.
constexpr int64_t kAlignment = 2 * kCacheLineBytes;

}  // namespace

// An allocated range, which its destructor frees.
class Heap::Buffer final : public SharedBuffer {
 public:
  Buffer(std::shared_ptr<Heap> heap, int64_t offset, int64_t reserved, int64_t bytes)
      : heap_(std::move(heap)), offset_(offset), reserved_(reserved), bytes_(bytes) {}
  ~Buffer() override { heap_->Free(offset_, reserved_); }

  void* data() override { return heap_->segment_->At(offset_); }
  int64_t bytes() const override { return bytes_; }

 private:
  const std::shared_ptr<Heap> heap_;
  const int64_t offset_;
  const int64_t reserved_;  // bytes_, rounded up
  const int64_t bytes_;
};

Heap::Heap(std::shared_ptr<Segment> segment, int rank)
    : segment_(std::move(segment)),
      begin_(segment_->layout().Heap(rank)),
      end_(begin_ + segment_->layout().heap_bytes),
      free_(begin_, end_) {}

// The first comparison, with the whole heap, also keeps the rounding from overflowing.
std::shared_ptr<SharedBuffer> Heap::Allocate(int64_t bytes) {
  if (bytes < 0 || bytes > end_ - begin_) return nullptr;
  const int64_t reserved = std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  std::optional<int64_t> offset;
  {
    const MutexLock lock(mutex_);
    offset = free_.Take(reserved);
  }
  if (!offset) return nullptr;
  return std::make_shared<Buffer>(shared_from_this(), *offset, reserved, bytes);
}

void Heap::Free(int64_t offset, int64_t bytes) {
  const MutexLock lock(mutex_);
  free_.Return(offset, bytes);
}

// Compares numbers instead of pointers, which may be compared only inside of one object. `end_ - bytes` cannot
// overflow, while `offset + bytes` might.
std::optional<int64_t> Heap::OffsetOf(const void* data, int64_t bytes) const {
  const int64_t offset =
      static_cast<int64_t>(reinterpret_cast<intptr_t>(data) - reinterpret_cast<intptr_t>(segment_->At(0)));
  if (offset < begin_ || offset > end_ - bytes) return std::nullopt;
  return offset;
}

int64_t Heap::FreeBytes() const {
  const MutexLock lock(mutex_);
  return free_.bytes();
}

}  // namespace lockstep::shm
