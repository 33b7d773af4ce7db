#include "core/comm/shm/attach.h"

#include <sched.h>

#include <string>
#include <utility>
#include <vector>

#include "core/base/deadline.h"

// How n processes get shared memory without a name:
//
//   1. each listens on a local socket of its own;
//   2. a rendezvous gives all settings and socket names to all ranks, and a common key (job/bootstrap.h);
//   3. each pair connects over the local sockets and authenticates by the key;
//   4. the first rank makes the segment and sends its descriptor over these connections; all map it;
//   5. each writes its cores into its block, announces its first step and waits for all.
//
// From the last step on, ranks communicate only through the segment.

namespace lockstep::shm {
namespace {

// Connects to all peers and maps the memory that the first one makes. Fills `peers`, which owns the sockets. The
// descriptor of the segment is closed at the end, because the mapping keeps the memory.
Result<std::shared_ptr<Segment>> MapShared(Group& group, const Layout& layout, const Deadline& deadline, Peers& peers) {
  LOCKSTEP_ASSIGN_OR_RETURN(peers, group.mesh->Join(group.index, group.sockets, group.key, deadline, group.ended));
  if (group.index != 0) {
    LOCKSTEP_ASSIGN_OR_RETURN(const UniqueFd fd,
                              ReceiveFd(*peers.socket(0), group.key, group.index, deadline, group.ended));
    return Segment::Map(fd, layout);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const UniqueFd fd, Segment::Make(layout));
  for (int peer = 1; peer < layout.size; ++peer) {
    LOCKSTEP_RETURN_IF_ERROR(SendFd(*peers.socket(peer), fd, group.key, peer));
  }
  return Segment::Map(fd, layout);
}

// Returns the number of different cores of all ranks. Each rank may be bound to its own cores, so one rank's mask is
// not enough. Call it after the first wait, which makes the others' writes visible.
int CoresOfAllRanks(Segment& segment) {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int rank = 0; rank < segment.layout().size; ++rank) CPU_OR(&all, &all, &segment.block(rank).cpus);
  return CPU_COUNT(&all);
}

}  // namespace

// The start may take the rest of the rendezvous' time; calls have the stall timeout. Until the cores are known, the
// wait spins as if there were enough of them.
Result<Attachment> Attach(const ContextOptions& options, Group group) {
  const int size = static_cast<int>(group.ranks.size());
  const Layout layout = {size, (options.shared_bytes_per_rank + kPageBytes - 1) / kPageBytes * kPageBytes};
  const Deadline deadline = Deadline::After(options.rendezvous_timeout_s);
  Attachment attachment;
  Peers peers;
  if (size == 1) {
    LOCKSTEP_ASSIGN_OR_RETURN(const UniqueFd fd, Segment::Make(layout));
    LOCKSTEP_ASSIGN_OR_RETURN(attachment.segment, Segment::Map(fd, layout));
  } else {
    LOCKSTEP_ASSIGN_OR_RETURN(attachment.segment, MapShared(group, layout, deadline, peers));
  }
  Segment& segment = *attachment.segment;
  sched_getaffinity(0, sizeof(cpu_set_t), &segment.block(group.index).cpus);
  WaitPolicy policy = {.timeout_s = deadline.Left(), .stopped_timeout_s = options.stopped_timeout_s};
  attachment.waiter =
      std::make_unique<Waiter>(attachment.segment, group.index,
                               Waiter::Names{std::move(group.ranks), std::move(group.host)}, std::move(peers), policy);
  attachment.waiter->SetOperation(CallKind::kBarrier, "start of the job");
  attachment.waiter->Announce();
  LOCKSTEP_RETURN_IF_ERROR(attachment.waiter->WaitForAll(attachment.waiter->announced()));

  policy.timeout_s = options.stall_timeout_s;
  if (CoresOfAllRanks(segment) < size) {
    // A spinning rank would take a core from the rank that it waits for.
    policy.spin_us = 0;
    policy.yields = 10;
  }
  attachment.waiter->set_policy(policy);
  return attachment;
}

}  // namespace lockstep::shm
