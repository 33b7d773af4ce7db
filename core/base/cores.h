#pragma once

namespace lockstep {

// Returns the number of cores that the calling thread may run on, at least 1. It follows the affinity mask (taskset, a
// container's set of cores), not the machine's count. New threads inherit the mask, so for a thread that was never
// bound it is the process's number. A limit of CPU time (a cgroup's quota) is not seen.
//
// Costs one system call, and the mask may change later: call it where something is set up, not in each step.
// Thread-safe.
int AvailableCores();

}  // namespace lockstep
