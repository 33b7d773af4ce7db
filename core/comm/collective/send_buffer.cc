#include "core/comm/collective/send_buffer.h"

namespace lockstep {
namespace {

// Small messages are cheaper to copy than to allocate in shared memory, where a lock and a search for a free range are
// due; the communicator copies them through memory of its own.
constexpr int64_t kSharedFromBytes = 1 << 16;

}  // namespace

SendBuffer::SendBuffer(Communicator& communicator, int64_t bytes) {
  if (bytes >= kSharedFromBytes && communicator.size() > 1) shared_ = communicator.AllocateShared(bytes);
  if (!shared_) owned_ = std::make_unique_for_overwrite<char[]>(bytes);
  data_ = shared_ ? static_cast<char*>(shared_->data()) : owned_.get();
}

}  // namespace lockstep
