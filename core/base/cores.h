#pragma once

namespace lockstep {

// How many cores the calling thread may run on, at least 1: what its affinity mask allows (taskset, a container's set
// of cores), and not what the machine has. New threads inherit the mask, so for a thread that nobody has bound it is
// the number for the process. A limit of CPU time (a cgroup's quota) is not seen.
//
// One system call, and the mask may change later: ask where something is set up, not for each step. Thread-safe.
int AvailableCores();

}  // namespace lockstep
