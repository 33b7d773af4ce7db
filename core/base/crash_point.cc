#include "core/base/crash_point.h"

#include <signal.h>
#include <unistd.h>

#include <mutex>
#include <utility>

namespace lockstep {
namespace {

struct Asked {
  std::mutex mutex;
  std::string name;  // guarded by mutex
  int passes = 0;    // guarded by mutex; the passes that are left
};

Asked& TheAsked() {
  static Asked* const asked = new Asked;
  return *asked;
}

}  // namespace

namespace internal {

std::atomic<bool> crash_asked_for{false};

void PassAskedFor(const char* name) {
  Asked& asked = TheAsked();
  std::lock_guard lock(asked.mutex);
  if (asked.name == name && --asked.passes == 0) kill(getpid(), SIGKILL);
}

}  // namespace internal

Status CrashAt(std::string name, int passes) {
  if (passes < 1)
    return InvalidArgument("crash point '" + name + "': pass " + std::to_string(passes) + ", wanted 1 or more");
  Asked& asked = TheAsked();
  std::lock_guard lock(asked.mutex);
  asked.name = std::move(name);
  asked.passes = passes;
  internal::crash_asked_for.store(true, std::memory_order_release);
  return OkStatus();
}

}  // namespace lockstep
