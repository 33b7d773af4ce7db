#pragma once

#include <cstdint>
#include <memory>

#include "core/comm/collective/communicator.h"

namespace lockstep {

// From here on a result is worth a view of shared memory: to copy less costs a few microseconds.
inline constexpr int64_t kViewBytes = 64 << 10;

// `memory` as what views hold (ViewOf): it counts, all of it, until the last view is gone. Null where views of this
// process would hold more than `limit_bytes` then, and where `memory` is null: such results are copied out, or go into
// memory of TensorFlow's. A value that lives long (one that is assigned to a variable) would take its memory from the
// exchanges to come, so views are rationed. Thread-safe.
std::shared_ptr<SharedBuffer> ForViews(std::shared_ptr<SharedBuffer> memory, int64_t limit_bytes);

}  // namespace lockstep
