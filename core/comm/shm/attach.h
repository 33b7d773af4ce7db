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

// A rank that is ready to communicate: all ranks have mapped the segment, and the waiter has its final policy.
struct Attachment {
  std::shared_ptr<Segment> segment;
  std::unique_ptr<Waiter> waiter;
};

// The ranks that share a segment, after the rendezvous, when each listens (mesh.h).
struct Group {
  int index = 0;                     // index of this rank among them
  std::vector<int> ranks;            // [n]: their numbers in the job, used in messages
  std::optional<Mesh> mesh;          // this rank's listening socket; none in a group of one
  std::vector<std::string> sockets;  // [n]: the socket names of all
  Digest key = {};                   // known only to the job
  std::string host;                  // its name in messages if the job has several hosts, else ""
  Ended ended = {};                  // another reason to end the wait for the others
};

// Sets up shared memory for a group: local sockets, the segment, and a first wait until all have mapped it. All ranks
// have to pass the same settings. A group of one needs no peers.
//
// Blocks for up to rendezvous_timeout_s. `options` are valid (Validate) and are not kept. Returns the errors of
// Mesh::Join, Segment and, in the last wait, Waiter. After an error all connections of this rank are closed, which the
// others notice.
Result<Attachment> Attach(const ContextOptions& options, Group group);

}  // namespace lockstep::shm
