#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/telemetry/trace_event.h"

namespace lockstep {

// The process whose trace it is; the first event of the file.
struct TraceHeader {
  int rank = 0;
  int size = 1;
  uint64_t job = 0;  // the same on all ranks, and different for each job
};

// A file of Chrome's trace event format, which chrome://tracing and ui.perfetto.dev open: a JSON array with one event
// in each line. The process of an event is the rank, and its threads are rows:
//
//   0         steps
//   1 to 99   lanes, in the order in which they were opened
//   100 on    tables, in the order of their first lookup; one more row for lookups that run at the same time
//
//   [
//   {"ph":"M","name":"lockstep","pid":0,"tid":0,"args":{"format":1,"rank":0,"size":2,"job":"8f..","process":17,...}},
//   {"ph":"X","name":"allreduce grad","cat":"collective","pid":0,"tid":1,"ts":12.345,"dur":6.7,"args":{...}},
//   ...
//   {"ph":"M","name":"lockstep_end","pid":0,"tid":0,"args":{"events":812,"dropped":0,"full":false}}
//   ]
//
// docs/timeline.md lists the arguments of each kind. Times are microseconds of the machine's monotonic clock. A process
// that is killed leaves a file without its end: viewers and `lockstep timeline` read it. Not thread-safe.
class TraceFile {
 public:
  // Makes the folder and the file <folder>/rank-<rank>-<process>.json; further ones of the same process, as in an
  // elastic job, end in "-2" and so on. INVALID_ARGUMENT if that is not possible. After `most_bytes` no event is
  // written.
  static Result<std::unique_ptr<TraceFile>> Create(const std::string& folder, int rank, int64_t most_bytes);

  const std::string& path() const { return path_; }
  // Writes the start of the file; to be called once, before all others.
  void WriteHeader(const TraceHeader& header);
  // Names the row of a lane.
  void NameLane(int lane, std::string_view name);
  // Adds events; they are in the file after Flush.
  void Write(const TraceEvent& event);
  void Flush();
  // Writes the end. `dropped`: events that were lost before they came here.
  void WriteEnd(int64_t dropped);

  // Whether events were left out because the file is full, or could not be written.
  bool full() const { return full_ || failed_; }

 private:
  TraceFile(std::string path, UniqueFd file, int64_t most_bytes)
      : path_(std::move(path)), file_(std::move(file)), most_bytes_(most_bytes) {}

  void NameRow(int row, std::string_view name);
  // The row of a table's event that begins and ends then.
  int RowOf(const TraceEvent& event);
  // Begins an event of a row, up to its "args":{.
  void Begin(const TraceEvent& event, int row, std::string_view category, std::string_view name);
  void Append(std::string_view text) { unwritten_ += text; }

  // A row of a table, and the end of its last event.
  struct Row {
    int number;
    int64_t end_ns;
  };

  const std::string path_;
  UniqueFd file_;
  const int64_t most_bytes_;
  int rank_ = 0;
  int64_t bytes_ = 0;
  int64_t events_ = 0;
  bool full_ = false;
  bool failed_ = false;
  int next_row_ = 100;
  std::map<std::string, std::vector<Row>, std::less<>> rows_;  // of tables, by name
  std::string unwritten_;
};

}  // namespace lockstep
