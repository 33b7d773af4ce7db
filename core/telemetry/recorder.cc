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
    recorder->writer_ = std::thread([state = recorder->state_] { Run(*state); });
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
    const MutexLock lock(state_->mutex);
    state_->ends = true;
  }
  state_->wake.NotifyOne();
  writer_.join();
}

void Recorder::Record(const TraceEvent& event) {
  if (fork_.InFork()) return;
  const MutexLock lock(state_->mutex);
  if (state_->events.size() < kMostEvents) {
    state_->events.push_back(event);
  } else {
    state_->dropped.fetch_add(1, std::memory_order_relaxed);
  }
}

void Recorder::NameLane(int lane, std::string name) {
  if (fork_.InFork()) return;
  const MutexLock lock(state_->mutex);
  state_->lanes.emplace_back(lane, std::move(name));
}

// The two lists change places, so that neither is allocated again.
void Recorder::Run(State& state) {
  std::vector<TraceEvent> events;
  std::vector<std::pair<int, std::string>> lanes;
  bool ends = false;
  while (!ends) {
    {
      const MutexLock lock(state.mutex);
      const auto end = std::chrono::steady_clock::now() + kFlush;
      while (!state.ends && state.wake.WaitUntil(state.mutex, end)) {
      }
      ends = state.ends;
      events.swap(state.events);
      lanes.swap(state.lanes);
    }
    for (const auto& [lane, name] : lanes) state.file->NameLane(lane, name);
    for (const TraceEvent& event : events) state.file->Write(event);
    state.file->Flush();
    events.clear();
    lanes.clear();
  }
  state.file->WriteEnd(state.dropped.load(std::memory_order_relaxed));
}

}  // namespace lockstep
