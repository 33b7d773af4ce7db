#pragma once

#include <atomic>
#include <string>

#include "core/base/status.h"

namespace lockstep {

// Named points of work that a crash at any moment must not spoil, such as the saving of a checkpoint. A test has its
// own process killed at one of them. The kill is certain; one by the clock would depend on the machine.
//
//   PassCrashPoint("commit: index renamed");   // in the work
//   CrashAt("commit: index renamed", 1);       // in the test's process, before the work
//
// Nothing else sets a point off: there is no variable of the environment and no option for it.

// Ends this process by SIGKILL, as the system would, at the passing of point `name` that CrashAt asked for. A load and
// a branch where it asked for none. Any thread.
inline void PassCrashPoint(const char* name);

// Has this process killed when it passes `name` for the `passes`-th time from now on, on whatever thread. A later call
// takes the place of an earlier one. A name that no point has is never passed. INVALID_ARGUMENT where `passes` is less
// than 1. Any thread.
Status CrashAt(std::string name, int passes);

namespace internal {
// Whether any point is set off; changed by CrashAt alone.
extern std::atomic<bool> crash_asked_for;
void PassAskedFor(const char* name);
}  // namespace internal

inline void PassCrashPoint(const char* name) {
  if (internal::crash_asked_for.load(std::memory_order_acquire)) [[unlikely]]
    internal::PassAskedFor(name);
}

}  // namespace lockstep
