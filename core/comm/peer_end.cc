#include "core/comm/peer_end.h"

#include <mutex>

namespace lockstep::peer_end {
namespace {

struct Noted {
  std::mutex mutex;
  std::string why;  // guarded by mutex
};

// Never destroyed: threads of the engine may outlive static objects.
Noted& TheNoted() {
  static Noted* const noted = new Noted;
  return *noted;
}

}  // namespace

void Note(const Status& why) {
  if (why.code() != StatusCode::kUnavailable && why.code() != StatusCode::kCancelled) return;
  const std::lock_guard lock(TheNoted().mutex);
  if (TheNoted().why.empty()) TheNoted().why = why.message();
}

void Forget() {
  const std::lock_guard lock(TheNoted().mutex);
  TheNoted().why.clear();
}

std::string Why() {
  const std::lock_guard lock(TheNoted().mutex);
  return TheNoted().why;
}

}  // namespace lockstep::peer_end
