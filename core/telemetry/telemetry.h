#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/fork_guard.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/telemetry/lane_counters.h"
#include "core/telemetry/recorder.h"
#include "core/telemetry/table_counters.h"
#include "core/telemetry/trace_event.h"

namespace lockstep {

// The counters and the timeline of one process. The process has one (capi/capi.h), which outlives its jobs; tests that
// run ranks as threads have one for each rank.
// ```cpp
// const auto lane = telemetry.OpenLane("ordered", rank, size);
// LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<TraceFile> file, telemetry.OpenTimeline(folder, rank));
// LOCKSTEP_RETURN_IF_ERROR(telemetry.StartTimeline(std::move(file), {rank, size, job}));
// lane->AddCall(400, 400);
// telemetry.Table("user").AddLookup(1000, 312);
// if (telemetry.recording()) telemetry.Record(event);
// telemetry.CloseLane(*lane);                            // the last one ends the timeline
// ```
// Counters are always on and never go back. In a fork of the process, closing lanes and recording do nothing.
// Thread-safe.
class Telemetry {
 public:
  // The limit of a trace file: some 800,000 events, which viewers can still open.
  static constexpr int64_t kMostTraceBytes = int64_t{128} << 20;

  // Makes the counters of a lane, which stay after its end. The lane number of its events is LaneNumber.
  std::shared_ptr<LaneCounters> OpenLane(std::string_view name, int rank, int size);
  void CloseLane(const LaneCounters& lane);
  int LaneNumber(const LaneCounters& lane) const;

  // Returns the counters of the lane of this name that was opened last; null if there was none.
  std::shared_ptr<LaneCounters> Lane(std::string_view name) const;

  // Returns the counters of a table by its name, which are made at the first use and stay. Takes a lock and a search:
  // callers keep the reference.
  TableCounters& Table(std::string_view name);

  // Counts a training step that has just ended. It began with the end of the step before.
  void EndStep();

  // Makes the file of a timeline in a folder; null if a timeline runs already. Returns TraceFile::Create's errors.
  Result<std::unique_ptr<TraceFile>> OpenTimeline(const std::string& folder, int rank) const;
  // Records from now on in this file, until the last lane is closed. Does nothing without a file.
  // RESOURCE_EXHAUSTED without a thread.
  Status StartTimeline(std::unique_ptr<TraceFile> file, const TraceHeader& header);
  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  // Records an event, if a timeline runs.
  void Record(const TraceEvent& event);

  // Returns all counters as an object of JSON: {"ns": now, "steps": 3, "lanes": [{"lane": "ordered", "rank": 0, ...}],
  // "tables": [{"name": "user", ...}], "dropped_events": 0}. The keys are the names of the counters' getters.
  std::string Json() const;

 private:
  const ForkGuard fork_;
  std::atomic<int64_t> steps_{0};
  std::atomic<int64_t> step_ended_ns_{0};  // 0: no step has ended
  std::atomic<bool> recording_{false};

  struct OneLane {
    std::shared_ptr<LaneCounters> counters;
    bool is_open;
  };

  mutable Mutex mutex_;
  std::vector<OneLane> lanes_ LOCKSTEP_GUARDED_BY(mutex_);  // all that ever were
  std::map<std::string, std::unique_ptr<TableCounters>, std::less<>> tables_ LOCKSTEP_GUARDED_BY(mutex_);
  std::shared_ptr<Recorder> recorder_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
