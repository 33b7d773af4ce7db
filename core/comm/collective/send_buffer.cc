#include "core/comm/collective/send_buffer.h"

namespace lockstep {
namespace {

// Small messages are cheaper to copy than to allocate in shared memory, which takes a lock and a search for a free
// range. The communicator copies them through its own memory.
constexpr int64_t kSharedFromBytes = 1 << 16;

}  // namespace

SendBuffer::SendBuffer(Communicator& communicator, int64_t bytes) {
  if (bytes >= kSharedFromBytes && communicator.size() > 1) shared_ = communicator.AllocateShared(bytes);
  if (!shared_) owned_ = std::make_unique_for_overwrite<char[]>(bytes);
  data_ = shared_ ? static_cast<char*>(shared_->data()) : owned_.get();
}

}  // namespace lockstep
