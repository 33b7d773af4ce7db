#include "core/telemetry/recorder.h"

#include <chrono>
#include <system_error>

#include "core/base/strings.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kFlush{200};

}  // namespace

Result<std::unique_ptr<Recorder>> Recorder::Create(std::unique_ptr<TraceFile> file, const TraceHeader& header) {
  file->WriteHeader(header);
  file->Flush();
  std::unique_ptr<Recorder> recorder(new Recorder(std::move(file)));
  try {
    recorder->writer_ = std::thread([recorder = recorder.get()] { recorder->Run(); });
  } catch (const std::system_error& error) {
    return ResourceExhausted(StrCat("no thread to write the timeline: ", error.what()));
  }
  return recorder;
}

Recorder::~Recorder() {
  if (!writer_.joinable()) return;
  // A fork has the handle but not the thread, and the lock may be held there.
  if (fork_.InFork()) {
    writer_.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_one();
  writer_.join();
}

void Recorder::Record(const TraceEvent& event) {
  if (fork_.InFork()) return;
  const std::lock_guard lock(mutex_);
  if (events_.size() < kMostEvents) {
    events_.push_back(event);
  } else {
    dropped_.fetch_add(1, std::memory_order_relaxed);
  }
}

void Recorder::NameLane(int lane, std::string name) {
  if (fork_.InFork()) return;
  const std::lock_guard lock(mutex_);
  lanes_.emplace_back(lane, std::move(name));
}

// The two lists change places, so that neither is allocated again.
void Recorder::Run() {
  std::vector<TraceEvent> events;
  std::vector<std::pair<int, std::string>> lanes;
  bool ends = false;
  while (!ends) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, kFlush, [this] { return ends_; });
      ends = ends_;
      events.swap(events_);
      lanes.swap(lanes_);
    }
    for (const auto& [lane, name] : lanes) file_->NameLane(lane, name);
    for (const TraceEvent& event : events) file_->Write(event);
    file_->Flush();
    events.clear();
    lanes.clear();
  }
  file_->WriteEnd(dropped());
}

}  // namespace lockstep
