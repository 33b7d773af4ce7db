#include "core/base/not_in_forks.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/base/mutex.h"

namespace lockstep {

// The handlers that fork(2) calls. They hold the mutex while the process is copied, so the list is complete in the
// child. The child's only thread is the one that forked, and it holds the mutex. The child may make system calls, but
// must not allocate memory.
struct ForkHandlers {
  // Never destroyed: a fork may happen after static objects are destroyed.
  static ForkHandlers& Get() {
    static auto* const handlers = new ForkHandlers();
    return *handlers;
  }

  ForkHandlers() {
    // Without memory for the handlers, forks keep their copies of the descriptors.
    (void)pthread_atfork([] { Get().Hold(); }, [] { Get().Free(); },
                         [] {
                           Get().Drop();
                           Get().Free();
                         });
  }

  // The analysis does not follow the mutex from one handler to the next.
  void Hold() LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS { mutex.lock(); }
  void Free() LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS { mutex.unlock(); }
  void Drop() const LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS {
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
