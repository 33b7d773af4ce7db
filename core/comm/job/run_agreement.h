#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"

namespace lockstep {

// What the ranks have found to be the same: the lists of collectives of the graphs that they ran.
//
// A rank that runs a list for the first time exchanges it with its peers. It is known on all ranks or on none, because
// the exchange is a collective; so ranks that run the same graphs agree on whether there is something to exchange,
// though they may have built and run other things (one writes summaries) in between.
//
//   const uint64_t fingerprint = RunAgreement::Fingerprint(operations);  // once, where the graph is built
//   if (!agreement.Holds(fingerprint)) {                                 // each run: a look into a set
//     LOCKSTEP_RETURN_IF_ERROR(agreement.Reach(communicator, operations));  // the first run: 8 bytes from each rank
//   }
//
// A list's operations are text that says all that has to be the same (kind, name, type); no operation holds a line
// break or a zero byte, as these divide operations and lists in the exchange. What differs would otherwise be seen at
// the first collective that does not match, when part of the step is done. Grows by a number for each list.
// Thread-safe, where Reach goes through the lane like every collective.
class RunAgreement {
 public:
  // A hash of the list: equal on all ranks that have the same. Lists that differ have the same one by a chance of about
  // 2^-64.
  static uint64_t Fingerprint(std::span<const std::string> operations);

  // Whether all ranks agreed on the list with this fingerprint. Never waits for a peer.
  bool Holds(uint64_t fingerprint) const;

  // Compares `operations` with the other ranks' and remembers that they are the same. A collective: every rank calls
  // it. FAILED_PRECONDITION on every rank, with the first operation that differs and what each rank has, where they are
  // not; the communicator stays usable, and the next Reach asks again. Other errors are the communicator's.
  Status Reach(Communicator& communicator, std::span<const std::string> operations);

  // Of the lists of all ranks as they come over the wire, which `ranks` of them there should be: FAILED_PRECONDITION
  // with the first difference; DATA_LOSS where they are not so many, or don't differ.
  static Status Disagreement(std::string_view lists, int ranks);

 private:
  mutable std::mutex mutex_;
  std::unordered_set<uint64_t> agreed_;  // guarded by mutex_
};

}  // namespace lockstep
