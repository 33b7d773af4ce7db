#pragma once

#include <string>

#include "core/base/status.h"

// How a communicator or a lane of this process has ended because a peer died, left or aborted the job. A program that
// fails from then on fails because of another rank. Of the whole process; thread-safe.
namespace lockstep::peer_end {

// The first counts. A peer that only does not come (DEADLINE_EXCEEDED) has not ended.
void Note(const Status& why);
// The process meets others anew.
void Forget();
// The text of what was noted; empty: nothing.
std::string Why();

}  // namespace lockstep::peer_end
