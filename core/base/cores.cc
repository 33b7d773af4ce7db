#include "core/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace lockstep {

int AvailableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // The call fails if the machine has more cores than the set can hold; then all of them count.
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace lockstep
