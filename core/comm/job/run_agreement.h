#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>

#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"

namespace lockstep {

// The lists of collectives that are known to be equal on all ranks: the lists of the graphs that they ran.
//
// A rank that runs a list for the first time exchanges it with its peers. The exchange is a collective, so a list is
// known on all ranks or on none. So ranks that run the same graphs agree on whether an exchange is needed, even if they
// have built and run other things in between (one writes summaries).
// ```cpp
// const uint64_t fingerprint = RunAgreement::Fingerprint(operations);  // once, where the graph is built
// if (!agreement.Holds(fingerprint)) {                                 // each run: a search in a set
//   LOCKSTEP_RETURN_IF_ERROR(agreement.Reach(communicator, operations));  // the first run: 8 bytes from each rank
// }
// ```
// A list's operations are text with everything that has to be equal (kind, name, type). No operation contains a line
// break or a zero byte, because these divide operations and lists in the exchange. Without the agreement, a difference
// would be seen at the first collective that does not match, in the middle of a step. It grows by one number for each
// list. Thread-safe if Reach goes through the lane, like every collective.
class RunAgreement {
 public:
  // Returns a hash of the list: equal lists have the same one on all ranks. Different lists have the same one with a
  // chance of about 2^-64.
  static uint64_t Fingerprint(std::span<const std::string> operations);

  // Returns whether all ranks agreed on the list with this fingerprint. Never waits for a peer.
  bool Holds(uint64_t fingerprint) const;

  // Compares `operations` with the other ranks' and remembers that they are equal. It is a collective: every rank calls
  // it. If they differ, returns FAILED_PRECONDITION on every rank, with the first difference and each rank's operation
  // there. The communicator then stays usable, and the next Reach exchanges again. Other errors are the communicator's.
  Status Reach(Communicator& communicator, std::span<const std::string> operations);

  // Parses the received lists of all ranks; there should be `ranks` of them. Returns FAILED_PRECONDITION with the first
  // difference. DATA_LOSS if there is another number of lists, or they do not differ.
  static Status Disagreement(std::string_view lists, int ranks);

 private:
  mutable Mutex mutex_;
  std::unordered_set<uint64_t> agreed_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
