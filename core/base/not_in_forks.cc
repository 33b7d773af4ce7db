#include "core/base/not_in_forks.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/base/held_in_forks.h"
#include "core/base/mutex.h"

namespace lockstep {

// The descriptors that forks lose. A fork holds the mutex, so the list is complete in the child.
struct ForkHandlers {
  static ForkHandlers& Get() {
    static auto* const handlers = new ForkHandlers();
    return *handlers;
  }

  // Without memory for the handlers, forks keep their copies of the descriptors.
  ForkHandlers() { HoldInForks<ForkHandlers>(); }

  // The child has the mutex; the analysis does not see this.
  void InChild() const LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS {
    for (const NotInForks* entry : entries) {
      for (const int descriptor : entry->descriptors_) {
        if (descriptor >= 0) dup3(nowhere, descriptor, O_CLOEXEC);
      }
    }
  }

  Mutex mutex;
  std::vector<const NotInForks*> entries LOCKSTEP_GUARDED_BY(mutex);
  const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
};

NotInForks::NotInForks(std::vector<int> descriptors) : descriptors_(std::move(descriptors)) {
  ForkHandlers& handlers = ForkHandlers::Get();
  const MutexLock lock(handlers.mutex);
  handlers.entries.push_back(this);
}

NotInForks::~NotInForks() {
  ForkHandlers& handlers = ForkHandlers::Get();
  const MutexLock lock(handlers.mutex);
  std::erase(handlers.entries, this);
}

}  // namespace lockstep
