#include "core/comm/shm/bootstrap.h"

#include <sched.h>

#include <string>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/rendezvous.h"
#include "core/comm/shm/mesh.h"

// How R processes come to share memory without a name for it:
//
//   1. each listens on a local socket of its own;
//   2. the rendezvous over TCP tells everybody's settings and socket names to all, and gives them a common key;
//   3. each pair connects over the local sockets and proves with the key who it is;
//   4. rank 0 makes the segment and sends its descriptor over these connections; all map it;
//   5. each writes its cores into its block, announces its first step and waits for that of all.
//
// From the last step on, all that ranks say to each other goes through the segment.

namespace lockstep::shm {
namespace {

// What all ranks have to have in common, as one line: the layout follows from it. Compared as text, so that the message
// can show it.
std::string SettingsLine(const ContextOptions& options) {
  return StrCat(options.purpose, ", backend shm, layout ", kLayoutVersion, ", ", options.shared_bytes_per_rank,
                " shared bytes per rank");
}

// A note is the settings line, a line break, and the name of the rank's local socket.
struct Note {
  std::string settings;
  std::string socket_name;
};

Note ParseNote(const std::string& text) {
  const size_t end = text.find('\n');
  return {text.substr(0, end), end == std::string::npos ? "" : text.substr(end + 1)};
}

// Each rank compares all settings with rank 0's and comes to the same verdict without another exchange.
Result<std::vector<std::string>> SocketNames(const Meeting& meeting) {
  const Note first = ParseNote(meeting.notes.front());
  std::vector<std::string> names;
  for (size_t rank = 0; rank < meeting.notes.size(); ++rank) {
    const Note note = ParseNote(meeting.notes[rank]);
    if (note.settings != first.settings) {
      return FailedPrecondition(StrCat("the ranks are configured differently: rank 0 has ", first.settings, "; rank ",
                                       rank, " has ", note.settings));
    }
    names.push_back(note.socket_name);
  }
  return names;
}

// Connects to all peers and maps the memory that rank 0 makes. `peers` is filled: it is what is left of the sockets.
// The descriptor of the segment is closed at the end, as the mapping holds it.
Result<std::shared_ptr<Segment>> MapShared(const ContextOptions& options, const Layout& layout,
                                           const Deadline& deadline, Peers& peers) {
  LOCKSTEP_ASSIGN_OR_RETURN(Mesh mesh, Mesh::Listen());
  LOCKSTEP_ASSIGN_OR_RETURN(const Meeting meeting, Meet({.rank = options.rank,
                                                         .size = options.size,
                                                         .address = options.rendezvous,
                                                         .secret = options.secret,
                                                         .note = StrCat(SettingsLine(options), '\n', mesh.name()),
                                                         .timeout_s = options.rendezvous_timeout_s,
                                                         .listener = options.listener}));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> names, SocketNames(meeting));
  LOCKSTEP_ASSIGN_OR_RETURN(peers, mesh.Join(options.rank, names, meeting.key, deadline));
  if (options.rank != 0) {
    LOCKSTEP_ASSIGN_OR_RETURN(const UniqueFd fd, ReceiveFd(peers.socket(0), deadline));
    return Segment::Map(fd, layout);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const UniqueFd fd, Segment::Make(layout));
  for (int rank = 1; rank < options.size; ++rank) LOCKSTEP_RETURN_IF_ERROR(SendFd(peers.socket(rank), fd));
  return Segment::Map(fd, layout);
}

// How many cores the ranks have between them. Each may be bound to its own, so one's own mask says little. Read after
// the first wait, which makes what the others wrote visible.
int CoresOfAllRanks(Segment& segment) {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int rank = 0; rank < segment.layout().size; ++rank) CPU_OR(&all, &all, &segment.block(rank).cpus);
  return CPU_COUNT(&all);
}

}  // namespace

// The start has the rest of the rendezvous's time; calls have the stall timeout. Until the cores are known, the wait
// spins as if there were enough of them.
Result<Attachment> Attach(const ContextOptions& options) {
  const Layout layout = {options.size, (options.shared_bytes_per_rank + kPageBytes - 1) / kPageBytes * kPageBytes};
  const Deadline deadline = Deadline::After(options.rendezvous_timeout_s);
  Attachment attachment;
  Peers peers;
  if (options.size == 1) {
    LOCKSTEP_ASSIGN_OR_RETURN(const UniqueFd fd, Segment::Make(layout));
    LOCKSTEP_ASSIGN_OR_RETURN(attachment.segment, Segment::Map(fd, layout));
  } else {
    LOCKSTEP_ASSIGN_OR_RETURN(attachment.segment, MapShared(options, layout, deadline, peers));
  }
  Segment& segment = *attachment.segment;
  sched_getaffinity(0, sizeof(cpu_set_t), &segment.block(options.rank).cpus);
  WaitPolicy policy = {.timeout_s = deadline.Left()};
  attachment.waiter = std::make_unique<Waiter>(attachment.segment, options.rank, std::move(peers), policy);
  attachment.waiter->SetOperation(CallKind::kBarrier, "start of the job");
  attachment.waiter->Announce();
  LOCKSTEP_RETURN_IF_ERROR(attachment.waiter->WaitForAll(attachment.waiter->announced()));

  policy.timeout_s = options.stall_timeout_s;
  if (CoresOfAllRanks(segment) < options.size) {
    // Whoever spins keeps a core from the one it waits for.
    policy.spin_us = 0;
    policy.yields = 10;
  }
  attachment.waiter->set_policy(policy);
  return attachment;
}

}  // namespace lockstep::shm
