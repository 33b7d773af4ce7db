#pragma once

#include <string>
#include <string_view>

#include "core/base/status.h"

// How communicators and lanes of this process have ended because a peer died, left or aborted the job. A program that
// fails with an error that says so fails because of another rank. One record for the whole process; thread-safe.
namespace lockstep::peer_end {

// Records an end, the first ones where there are many. A peer that only does not come (DEADLINE_EXCEEDED) has not
// ended.
void Note(const Status& why);
// Drops all records, since the process meets its peers again.
void Forget();
// Returns the first recorded text that is part of `text`; empty: none is.
std::string In(std::string_view text);

}  // namespace lockstep::peer_end
