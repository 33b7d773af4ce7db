#pragma once

#include <atomic>

#include "core/base/status.h"

namespace lockstep {

// Whether a communicator or a lane of this process has ended because a peer died, left or aborted the job: a program
// that fails with an error of it from then on fails because of another rank. What ends one is noted as it is told; a
// peer that only does not come (DEADLINE_EXCEEDED) has not ended. Of the whole process; thread-safe.
class PeerEnd {
 public:
  static void Note(const Status& why) {
    if (why.code() == StatusCode::kUnavailable || why.code() == StatusCode::kCancelled) seen_ = true;
  }
  static bool Seen() { return seen_; }
  // The process has met others anew.
  static void Forget() { seen_ = false; }

 private:
  static inline std::atomic<bool> seen_ = false;
};

}  // namespace lockstep
