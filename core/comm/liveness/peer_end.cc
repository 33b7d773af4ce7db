#include "core/comm/liveness/peer_end.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <vector>

namespace lockstep::peer_end {
namespace {

// Each communicator and each lane ends once, and in few ways; but a program may make any number of them.
constexpr size_t kMaxRecordedTexts = 64;

struct Record {
  std::mutex mutex;
  std::vector<std::string> texts;  // guarded by mutex
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
  const std::lock_guard lock(GlobalRecord().mutex);
  std::vector<std::string>& texts = GlobalRecord().texts;
  if (texts.size() < kMaxRecordedTexts && std::find(texts.begin(), texts.end(), why.message()) == texts.end()) {
    texts.emplace_back(why.message());
  }
}

void Forget() {
  const std::lock_guard lock(GlobalRecord().mutex);
  GlobalRecord().texts.clear();
}

std::string In(std::string_view text) {
  const std::lock_guard lock(GlobalRecord().mutex);
  const std::vector<std::string>& texts = GlobalRecord().texts;
  const auto found = std::find_if(texts.begin(), texts.end(),
                                  [&](const std::string& noted) { return text.find(noted) != std::string_view::npos; });
  return found == texts.end() ? "" : *found;
}

}  // namespace lockstep::peer_end
