#pragma once

#include <cstdint>

#include "core/base/status.h"
#include "core/columnar/memory/buffer.h"

namespace lockstep::columnar {

// Implements AllocateBuffer with Arrow's default pool.
Result<Buffer> AllocateFromArrow(int64_t bytes, void** data);

}  // namespace lockstep::columnar
