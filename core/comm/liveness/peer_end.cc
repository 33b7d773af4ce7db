#include "core/comm/liveness/peer_end.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/base/mutex.h"

namespace lockstep::peer_end {
namespace {

// Each communicator and each lane ends once, and in few ways; but a program may make any number of them.
constexpr size_t kMaxRecordedTexts = 64;

struct Record {
  Mutex mutex;
  std::vector<std::string> texts LOCKSTEP_GUARDED_BY(mutex);
};

// Never destroyed: threads of the engine may outlive static objects.
Record& GlobalRecord() {
  static Record* const record = new Record;
  return *record;
}

}  // namespace

void Note(const Status& why) {
  if (why.code() != StatusCode::kUnavailable && why.code() != StatusCode::kCancelled) return;
  if (why.message().empty()) return;
  Record& record = GlobalRecord();
  const MutexLock lock(record.mutex);
  std::vector<std::string>& texts = record.texts;
  if (texts.size() < kMaxRecordedTexts && std::find(texts.begin(), texts.end(), why.message()) == texts.end()) {
    texts.emplace_back(why.message());
  }
}

void Forget() {
  Record& record = GlobalRecord();
  const MutexLock lock(record.mutex);
  record.texts.clear();
}

std::string In(std::string_view text) {
  Record& record = GlobalRecord();
  const MutexLock lock(record.mutex);
  const auto found = std::find_if(record.texts.begin(), record.texts.end(),
                                  [&](const std::string& noted) { return text.find(noted) != std::string_view::npos; });
  return found == record.texts.end() ? "" : *found;
}

}  // namespace lockstep::peer_end
