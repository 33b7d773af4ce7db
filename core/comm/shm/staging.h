#pragma once

#include <cstdint>

#include "core/base/status.h"
#include "core/comm/shm/layout.h"
#include "core/comm/shm/waiter.h"

namespace lockstep::shm {

// The pipeline for large private contributions. A message is cut into `chunks`; chunk k lives in buffers k % kDepth of
// the ranks. All ranks make the same steps, with the same number of chunks:
//
//   step j:  produce(j)        write chunk j into the own outbox
//            wait for step j-1 of all
//            combine(j-1)      read the peers' outboxes: their chunks j-1 are complete now
//            announce step j
//            consume(j-2)      read the peers' results: their results j-2 are complete now
//
// So one announcement and one wait per step move three chunks by one stage each. A buffer is used again kDepth = 3
// steps later. Function produce(j) overwrites chunk j-3, which the peers combined before they announced step j-2; step
// j-1 has waited for that. Function combine(j-1) overwrites the result of chunk j-4, which they consumed before they
// announced step j-1.
//
//   step           0   1   2   3   4   5
//   produce        0   1   2   3                4 chunks, with results: 6 steps, 5 waits
//   combine            0   1   2   3
//   consume                0   1   2   3
//
// A rank waits after it has done all that it can: produce(j) depends on no peer, so a peer that is late by less than
// the time of a copy costs nothing.
//
// Calls without results pass `has_results` = false and take one step less. The last chunk is read in the last step. The
// next call writes only after all ranks have announced that: its Calls::Begin is the announcement, and comes before its
// first produce. So produce must not be called before Begin, and a call may return while its peers still read its
// outbox.
//
// The three functions take the number of a chunk, run on the calling thread, and cannot fail. A rank without data to
// send or to receive does nothing in them, and still makes all steps. Errors are the waiter's.
template <typename Produce, typename Combine, typename Consume>
Status RunPipeline(Waiter& waiter, int64_t chunks, bool has_results, Produce produce, Combine combine,
                   Consume consume) {
  const uint32_t first = waiter.announced() + 1;
  const int64_t steps = chunks + (has_results ? 2 : 1);
  for (int64_t j = 0; j < steps; ++j) {
    if (j < chunks) produce(j);
    if (j > 0) {
      LOCKSTEP_RETURN_IF_ERROR(waiter.WaitForAll(first + static_cast<uint32_t>(j - 1)));
      if (j - 1 < chunks) combine(j - 1);
    }
    if (j + 1 < steps) waiter.Announce();
    if (j > 1 && has_results) consume(j - 2);
  }
  return OkStatus();
}

}  // namespace lockstep::shm
