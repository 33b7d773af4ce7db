#pragma once

#include <cstdint>

namespace lockstep {

// Tells whether this process is a fork of the one that made the object. The object that contains the guard has threads,
// locks that they hold, and sockets that still belong to the parent. A child may touch none of them. InFork is one
// comparison, without a system call. Children that only start another program, as by posix_spawn, never call it.
// ```cpp
// if (guard_.InFork()) return FailedPrecondition("...");
// ```
// Thread-safe.
class ForkGuard {
 public:
  ForkGuard() : made_(Watched()) {}
  bool InFork() const { return made_ != Forks(); }

 private:
  // Forks counts the forks between this process and the first one; Watched starts the count.
  static uint32_t Watched();
  static uint32_t Forks();

  uint32_t made_;
};

}  // namespace lockstep
