#include "core/base/shared_ranges.h"

#include <algorithm>

namespace lockstep {

SharedRanges::SharedRanges(int64_t count, int64_t length, const Work& work)
    : count_(count), length_(length), size_((count + length - 1) / length), work_(work) {}

void SharedRanges::Take() {
  while (true) {
    const int64_t range = next_.fetch_add(1, std::memory_order_relaxed);
    if (range >= size_) return;
    work_(range * length_, std::min(count_, (range + 1) * length_));
    if (ended_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) ended_.notify_all();
  }
}

void SharedRanges::Wait() const {
  while (true) {
    const int64_t ended = ended_.load(std::memory_order_acquire);
    if (ended >= size_) return;
    ended_.wait(ended, std::memory_order_acquire);
  }
}

}  // namespace lockstep
