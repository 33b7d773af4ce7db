#pragma once

#include <memory>

#include "core/base/status.h"
#include "core/comm/context.h"
#include "core/comm/shm/segment.h"
#include "core/comm/shm/waiter.h"

namespace lockstep::shm {

// A rank that is ready to communicate: all ranks have mapped the segment, and the waiter has the final policy.
struct Attachment {
  std::shared_ptr<Segment> segment;
  std::unique_ptr<Waiter> waiter;
};

// From options to shared memory: rendezvous, local sockets, segment, and a first wait until all have mapped it. All
// ranks have to bring the same settings; FAILED_PRECONDITION shows both where they don't. A job of one rank meets
// nobody.
//
// Blocks for up to rendezvous_timeout_s. `options` are valid (Validate) and are not kept. Errors are those of Meet,
// Mesh::Join, Segment and, in the last wait, of Waiter. After an error nothing is left: the others see this rank's
// connections close.
Result<Attachment> Attach(const ContextOptions& options);

}  // namespace lockstep::shm
