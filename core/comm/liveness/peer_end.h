#pragma once

#include <string>
#include <string_view>

#include "core/base/status.h"

// Records how communicators and lanes of this process ended because a peer died, left or aborted the job. A program
// that fails with such an error fails because of another rank. There is one record for the whole process; thread-safe.
namespace lockstep::peer_end {

// Records an end; if there are many, only the first ones. A peer that is only late (DEADLINE_EXCEEDED) has not ended.
void Note(const Status& why);
// Drops all records, for a new rendezvous with the peers.
void Forget();
// Returns the first recorded text that is part of `text`, or "" if none is.
std::string In(std::string_view text);

}  // namespace lockstep::peer_end
