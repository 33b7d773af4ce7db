#include "core/base/crash_point.h"

#include <signal.h>
#include <unistd.h>

#include <utility>

#include "core/base/mutex.h"

namespace lockstep {
namespace {

struct PendingCrash {
  Mutex mutex;
  std::string name LOCKSTEP_GUARDED_BY(mutex);
  int passes LOCKSTEP_GUARDED_BY(mutex) = 0;  // the passes that are left
};

PendingCrash& GlobalPendingCrash() {
  static PendingCrash* const pending = new PendingCrash;
  return *pending;
}

}  // namespace

namespace internal {

std::atomic<bool> crash_asked_for{false};

void PassAskedFor(const char* name) {
  PendingCrash& pending = GlobalPendingCrash();
  const MutexLock lock(pending.mutex);
  if (pending.name == name && --pending.passes == 0) kill(getpid(), SIGKILL);
}

}  // namespace internal

Status CrashAt(std::string name, int passes) {
  if (passes < 1)
    return InvalidArgument("crash point '" + name + "': pass " + std::to_string(passes) + ", wanted 1 or more");
  PendingCrash& pending = GlobalPendingCrash();
  const MutexLock lock(pending.mutex);
  pending.name = std::move(name);
  pending.passes = passes;
  internal::crash_asked_for.store(true, std::memory_order_release);
  return OkStatus();
}

}  // namespace lockstep
