#include "core/base/fork_guard.h"

#include <pthread.h>

#include <atomic>

namespace lockstep {
namespace {

std::atomic<uint32_t> g_forks{0};

}  // namespace

uint32_t ForkGuard::Forks() { return g_forks.load(std::memory_order_relaxed); }

uint32_t ForkGuard::Watched() {
  static const int watched = pthread_atfork(nullptr, nullptr, [] { g_forks.fetch_add(1, std::memory_order_relaxed); });
  (void)watched;  // without memory for the handler, forks go unnoticed
  return Forks();
}

}  // namespace lockstep
