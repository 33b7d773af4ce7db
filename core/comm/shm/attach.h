#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/comm/options.h"
#include "core/comm/shm/mesh.h"
#include "core/comm/shm/segment.h"
#include "core/comm/shm/waiter.h"

namespace lockstep::shm {

// A rank that is ready to communicate: all ranks have mapped the segment, and the waiter has the final policy.
struct Attachment {
  std::shared_ptr<Segment> segment;
  std::unique_ptr<Waiter> waiter;
};

// The ranks that share a segment, when they have met and each listens (mesh.h).
struct Group {
  int index = 0;                     // of this rank among them
  std::vector<int> ranks;            // [n]: their numbers in the job, which messages call them by
  std::optional<Mesh> mesh;          // where this rank listens; nothing in a group of one
  std::vector<std::string> sockets;  // [n]: where all do
  Digest key = {};                   // known to the job alone
  std::string host;                  // what messages call it where the job has several; "": it has one
  Ended ended = {};                  // what else may end the wait for the others
};

// From a group to shared memory: local sockets, segment, and a first wait until all have mapped it. All ranks have to
// bring the same settings. A group of one meets nobody.
//
// Blocks for up to rendezvous_timeout_s. `options` are valid (Validate) and are not kept. Errors are those of
// Mesh::Join, Segment and, in the last wait, of Waiter. After an error nothing is left: the others see this rank's
// connections close.
Result<Attachment> Attach(const ContextOptions& options, Group group);

}  // namespace lockstep::shm
