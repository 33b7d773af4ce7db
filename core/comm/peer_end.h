#pragma once

#include <string>
#include <string_view>

#include "core/base/status.h"

// How communicators and lanes of this process have ended because a peer died, left or aborted the job. A program that
// fails with an error that says so fails because of another rank. Of the whole process; thread-safe.
namespace lockstep::peer_end {

// A peer that only does not come (DEADLINE_EXCEEDED) has not ended. Of many the first are kept.
void Note(const Status& why);
// The process meets others anew.
void Forget();
// The first text of those noted that is part of `text`; empty: none is.
std::string In(std::string_view text);

}  // namespace lockstep::peer_end
