#pragma once

#include <pthread.h>

#include "core/base/mutex.h"

namespace lockstep {

// Holds a mutex while fork(2) copies the process. So what the mutex guards is complete in the child, whose only thread
// is the one that forked and holds the mutex. Forks by clone(2) or vfork(2) are not seen.
// ```cpp
// struct List {
//   static List& Get();               // the only object. It is never destroyed: a process may fork while it ends
//   List() { HoldInForks<List>(); }
//   void InChild();                   // called in the child before the mutex is free; must not allocate memory
//   Mutex mutex;
// };
// ```
// Without memory for the handlers, forks are not seen.
template <typename Owner>
void HoldInForks() {
  // The analysis does not follow the mutex from one handler to the next.
  struct Handlers {
    static void Hold() LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS { Owner::Get().mutex.lock(); }
    static void Free() LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS { Owner::Get().mutex.unlock(); }
    static void FreeInChild() {
      Owner::Get().InChild();
      Free();
    }
  };
  (void)pthread_atfork(Handlers::Hold, Handlers::Free, Handlers::FreeInChild);
}

}  // namespace lockstep
