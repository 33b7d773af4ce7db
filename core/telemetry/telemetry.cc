#include "core/telemetry/telemetry.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "core/base/json_text.h"
#include "core/telemetry/clock.h"

namespace lockstep {

std::shared_ptr<LaneCounters> Telemetry::OpenLane(std::string_view name, int rank, int size) {
  auto lane = std::make_shared<LaneCounters>(std::string(name), rank, size);
  const MutexLock lock(mutex_);
  lanes_.push_back({lane, /*is_open=*/true});
  if (recorder_ != nullptr) recorder_->NameLane(static_cast<int>(lanes_.size()), lane->lane());
  return lane;
}

// The recorder writes the end of its file when its last owner, which may be a thread that records, lets go of it.
void Telemetry::CloseLane(const LaneCounters& lane) {
  if (fork_.InFork()) return;       // a thread that is not here may hold the lock
  std::shared_ptr<Recorder> ended;  // destroyed after the lock
  const MutexLock lock(mutex_);
  bool any_open = false;
  for (OneLane& one : lanes_) {
    one.is_open = one.is_open && one.counters.get() != &lane;
    any_open = any_open || one.is_open;
  }
  if (any_open) return;
  recording_.store(false, std::memory_order_relaxed);
  ended = std::exchange(recorder_, nullptr);
}

int Telemetry::LaneNumber(const LaneCounters& lane) const {
  const MutexLock lock(mutex_);
  const auto is_it = [&](const OneLane& one) { return one.counters.get() == &lane; };
  return static_cast<int>(std::find_if(lanes_.begin(), lanes_.end(), is_it) - lanes_.begin()) + 1;
}

std::shared_ptr<LaneCounters> Telemetry::Lane(std::string_view name) const {
  const MutexLock lock(mutex_);
  for (auto lane = lanes_.rbegin(); lane != lanes_.rend(); ++lane) {
    if (lane->counters->lane() == name) return lane->counters;
  }
  return nullptr;
}

TableCounters& Telemetry::Table(std::string_view name) {
  const MutexLock lock(mutex_);
  auto found = tables_.find(name);
  if (found == tables_.end()) {
    found = tables_.emplace(std::string(name), std::make_unique<TableCounters>(std::string(name))).first;
  }
  return *found->second;
}

void Telemetry::EndStep() {
  const int64_t number = steps_.fetch_add(1, std::memory_order_relaxed) + 1;
  const int64_t now = SteadyNs();
  const int64_t before = step_ended_ns_.exchange(now, std::memory_order_relaxed);
  if (!recording() || before == 0) return;
  TraceEvent event;
  event.kind = TraceEvent::Kind::kStep;
  event.number = number;
  event.begin_ns = before;
  event.end_ns = now;
  Record(event);
}

Result<std::unique_ptr<TraceFile>> Telemetry::OpenTimeline(const std::string& folder, int rank) const {
  // The file of this process in this folder may be the one that is being written.
  if (recording()) return std::unique_ptr<TraceFile>();
  return TraceFile::Create(folder, rank, kMostTraceBytes);
}

Status Telemetry::StartTimeline(std::unique_ptr<TraceFile> file, const TraceHeader& header) {
  const MutexLock lock(mutex_);
  if (file == nullptr || recorder_ != nullptr) return OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(recorder_, Recorder::Create(std::move(file), header));
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_[i].is_open) recorder_->NameLane(static_cast<int>(i) + 1, lanes_[i].counters->lane());
  }
  recording_.store(true, std::memory_order_relaxed);
  return OkStatus();
}

void Telemetry::Record(const TraceEvent& event) {
  if (fork_.InFork()) return;
  std::shared_ptr<Recorder> recorder;
  {
    const MutexLock lock(mutex_);
    recorder = recorder_;
  }
  if (recorder != nullptr) recorder->Record(event);
}

std::string Telemetry::Json() const {
  std::ostringstream out;
  const MutexLock lock(mutex_);
  out << "{\"ns\":" << SteadyNs() << ",\"steps\":" << steps_.load(std::memory_order_relaxed) << ",\"lanes\":[";
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const LaneCounters& lane = *lanes_[i].counters;
    out << (i > 0 ? "," : "") << "{\"lane\":" << JsonText(lane.lane()) << ",\"rank\":" << lane.rank()
        << ",\"size\":" << lane.size() << ",\"collectives\":" << lane.collectives()
        << ",\"sent_bytes\":" << lane.sent_bytes() << ",\"received_bytes\":" << lane.received_bytes()
        << ",\"exchange_ns\":" << lane.exchange_ns() << ",\"wait_ns\":" << lane.wait_ns() << ",\"waited_for_ns\":[";
    for (int rank = 0; rank < lane.size(); ++rank) out << (rank > 0 ? "," : "") << lane.waited_for_ns(rank);
    out << "]}";
  }
  out << "],\"tables\":[";
  bool first = true;
  for (const auto& [name, table] : tables_) {
    out << (std::exchange(first, false) ? "" : ",") << "{\"name\":" << JsonText(name)
        << ",\"lookups\":" << table->lookups() << ",\"ids\":" << table->ids()
        << ",\"compared_ids\":" << table->compared_ids() << ",\"distinct_ids\":" << table->distinct_ids()
        << ",\"served_rows\":" << table->served_rows() << ",\"inserted_keys\":" << table->inserted_keys()
        << ",\"rows\":" << table->rows() << ",\"bytes\":" << table->bytes() << "}";
  }
  out << "],\"dropped_events\":" << (recorder_ == nullptr ? 0 : recorder_->dropped()) << "}";
  return std::move(out).str();
}

}  // namespace lockstep
