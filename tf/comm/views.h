#pragma once

#include <cstdint>
#include <memory>

#include "core/comm/collective/communicator.h"

namespace lockstep {

// The smallest result for which a view of shared memory pays: a smaller copy costs a few microseconds.
inline constexpr int64_t kViewBytes = 64 << 10;

// Returns `memory` for use by views (ViewOf): all of it counts until the last view is destroyed. Returns null if views
// of this process would then hold more than `limit_bytes`, or if `memory` is null. Such results are copied out, or go
// into TensorFlow's memory. The limit exists because a long-lived value (one that is assigned to a variable) would
// reduce the memory for later exchanges. Thread-safe.
std::shared_ptr<SharedBuffer> ForViews(std::shared_ptr<SharedBuffer> memory, int64_t limit_bytes);

}  // namespace lockstep
