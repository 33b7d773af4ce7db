#pragma once

#include <cstdint>

namespace lockstep {

// Whether this process is a fork of the one that made the object: what it is part of has threads, locks that they hold,
// and sockets that are still the parent's, none of which a child may touch. Asking is a comparison, without a system
// call. (Children that only begin another program, as by posix_spawn, have nobody to ask.)
//
//   if (guard_.InFork()) return FailedPrecondition("...");
//
// Thread-safe.
class ForkGuard {
 public:
  ForkGuard() : made_(Watched()) {}
  bool InFork() const { return made_ != Forks(); }

 private:
  // How many forks lie between this process and the first; Watched begins to count.
  static uint32_t Watched();
  static uint32_t Forks();

  uint32_t made_;
};

}  // namespace lockstep
