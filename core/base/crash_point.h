#pragma once

#include <atomic>
#include <string>

#include "core/base/status.h"

namespace lockstep {

// Named points of work that a crash at any moment must not damage, such as saving a checkpoint. A test kills its own
// process at one of them. The kill is certain, while a kill by the clock would depend on the machine.
// ```cpp
// PassCrashPoint("commit: index renamed");   // in the work
// CrashAt("commit: index renamed", 1);       // in the test's process, before the work
// ```
// Nothing else enables a crash point: neither an environment variable nor an option does.

// Ends this process by SIGKILL, as the system would, if CrashAt asked for a crash at point `name`. Otherwise it costs a
// load and a branch. Any thread.
inline void PassCrashPoint(const char* name);

// Kills this process when it passes `name` for the `passes`-th time from now on, on any thread. A later call replaces
// an earlier one. A name without a point is never passed. INVALID_ARGUMENT if `passes` is less than 1. Any thread.
Status CrashAt(std::string name, int passes);

namespace internal {
// True while a crash point is enabled; only CrashAt changes it.
extern std::atomic<bool> crash_asked_for;
void PassAskedFor(const char* name);
}  // namespace internal

inline void PassCrashPoint(const char* name) {
  if (internal::crash_asked_for.load(std::memory_order_acquire)) [[unlikely]]
    internal::PassAskedFor(name);
}

}  // namespace lockstep
