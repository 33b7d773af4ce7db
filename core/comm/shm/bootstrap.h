#pragma once

#include <memory>

#include "core/base/status.h"
#include "core/comm/context.h"
#include "core/comm/shm/segment.h"
#include "core/comm/shm/waiter.h"

namespace lockstep::shm {

// A rank that is ready to communicate.
struct Attachment {
  std::shared_ptr<Segment> segment;
  std::unique_ptr<Waiter> waiter;
};

// From options to shared memory: rendezvous, local sockets, segment, and a first wait until all have mapped it. All
// ranks have to bring the same settings; FAILED_PRECONDITION shows both where they don't. A job of one rank meets
// nobody.
Result<Attachment> Attach(const ContextOptions& options);

}  // namespace lockstep::shm
