#include "core/telemetry/trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "core/base/json_text.h"
#include "core/base/strings.h"

namespace lockstep {
namespace {

// Written before a Flush if so much has come.
constexpr size_t kMostUnwritten = size_t{1} << 20;
// The most files of one process and rank in a folder.
constexpr int kMostFiles = 10'000;

// The boot of this machine: processes with the same one have the same monotonic clock.
std::string BootId() {
  std::string id;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::getline(file, id);
  return id;
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, HOST_NAME_MAX) == 0 ? name : "?";
}

// Microseconds with three digits, as text of JSON.
void AppendUs(std::string& out, int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%lld.%03lld", static_cast<long long>(ns / 1000),
                static_cast<long long>(ns % 1000));
  out += text;
}

void AppendField(std::string& out, std::string_view name, int64_t value, bool first = false) {
  if (!first) out += ',';
  out += '"';
  out += name;
  out += "\":";
  out += std::to_string(value);
}

}  // namespace

Result<std::unique_ptr<TraceFile>> TraceFile::Create(const std::string& folder, int rank, int64_t most_bytes) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return InvalidArgument(StrCat("timeline: folder ", folder, " cannot be made: ", error.message()));
  const std::string name = StrCat(folder, "/rank-", rank, "-", getpid());
  std::string path = StrCat(name, ".json");
  UniqueFd file;
  for (int number = 2; number < kMostFiles; ++number) {
    file = UniqueFd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.valid() || errno != EEXIST) break;
    path = StrCat(name, "-", number, ".json");
  }
  if (!file.valid()) return InvalidArgument(StrCat("timeline: ", path, " cannot be written: ", strerror(errno)));
  return std::unique_ptr<TraceFile>(new TraceFile(std::move(path), std::move(file), most_bytes));
}

void TraceFile::WriteHeader(const TraceHeader& header) {
  rank_ = header.rank;
  char job[32];
  std::snprintf(job, sizeof(job), "%016llx", static_cast<unsigned long long>(header.job));
  Append(StrCat("[\n{\"ph\":\"M\",\"name\":\"lockstep\",\"pid\":", rank_,
                ",\"tid\":0,\"args\":{\"format\":1,\"rank\":", rank_, ",\"size\":", header.size, ",\"job\":\"", job,
                "\",\"process\":", getpid(), ",\"host\":", JsonText(HostName()), ",\"boot\":", JsonText(BootId()),
                ",\"unix_s\":", std::time(nullptr), "}}"));
  Append(StrCat(",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":", rank_, ",\"tid\":0,\"args\":{\"name\":\"rank ",
                rank_, "\"}}"));
  Append(StrCat(",\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":", rank_,
                ",\"tid\":0,\"args\":{\"sort_index\":", rank_, "}}"));
  NameRow(0, "steps");
}

void TraceFile::NameLane(int lane, std::string_view name) { NameRow(lane, StrCat("collectives: ", name)); }

void TraceFile::NameRow(int row, std::string_view name) {
  Append(StrCat(",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":", rank_, ",\"tid\":", row,
                ",\"args\":{\"name\":", JsonText(name), "}}"));
  Append(StrCat(",\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":", rank_, ",\"tid\":", row,
                ",\"args\":{\"sort_index\":", row, "}}"));
}

// Viewers want the events of a row to be apart or nested. So events of a table that overlap go to further rows.
int TraceFile::RowOf(const TraceEvent& event) {
  std::vector<Row>& rows = rows_[event.name];
  for (Row& row : rows) {
    if (row.end_ns > event.begin_ns) continue;
    row.end_ns = event.end_ns;
    return row.number;
  }
  rows.push_back({next_row_++, event.end_ns});
  NameRow(rows.back().number, StrCat("table ", event.name));
  return rows.back().number;
}

void TraceFile::Begin(const TraceEvent& event, int row, std::string_view category, std::string_view name) {
  unwritten_ += ",\n{\"ph\":\"X\",\"name\":";
  unwritten_ += JsonText(name);
  unwritten_ += ",\"cat\":\"";
  unwritten_ += category;
  unwritten_ += "\",\"pid\":" + std::to_string(rank_) + ",\"tid\":" + std::to_string(row) + ",\"ts\":";
  AppendUs(unwritten_, event.begin_ns);
  unwritten_ += ",\"dur\":";
  AppendUs(unwritten_, std::max<int64_t>(0, event.end_ns - event.begin_ns));
  unwritten_ += ",\"args\":{";
}

void TraceFile::Write(const TraceEvent& event) {
  if (full_) return;
  if (bytes_ + static_cast<int64_t>(unwritten_.size()) > most_bytes_) {
    full_ = true;
    return;
  }
  ++events_;
  switch (event.kind) {
    case TraceEvent::Kind::kStep:
      Begin(event, 0, "step", "step");
      AppendField(unwritten_, "step", event.number, /*first=*/true);
      break;
    case TraceEvent::Kind::kCollective:
      Begin(event, event.lane, "collective", StrCat(event.what, " ", event.name));
      AppendField(unwritten_, "number", event.number, /*first=*/true);
      AppendField(unwritten_, "sent_bytes", event.first);
      AppendField(unwritten_, "received_bytes", event.second);
      unwritten_ += ",\"wait_us\":";
      AppendUs(unwritten_, event.wait_ns);
      if (event.late >= 0) AppendField(unwritten_, "late", event.late);
      break;
    case TraceEvent::Kind::kLookup:
      Begin(event, RowOf(event), "lookup", "lookup");
      unwritten_ += "\"table\":" + JsonText(event.name);
      AppendField(unwritten_, "ids", event.first);
      AppendField(unwritten_, "distinct_ids", event.second);
      break;
    case TraceEvent::Kind::kResolve:
      Begin(event, RowOf(event), "keys", "keys");
      unwritten_ += "\"table\":" + JsonText(event.name);
      AppendField(unwritten_, "keys", event.first);
      AppendField(unwritten_, "inserted_keys", event.second);
      break;
  }
  unwritten_ += "}}";
  if (event.kind == TraceEvent::Kind::kCollective && event.wait_ns > 0) {
    // Drawn inside of the collective.
    TraceEvent wait = event;
    wait.begin_ns = std::clamp(event.wait_begin_ns, event.begin_ns, event.end_ns);
    wait.end_ns = std::min(event.end_ns, wait.begin_ns + event.wait_ns);
    Begin(wait, event.lane, "wait",
          event.late >= 0 ? StrCat("wait for rank ", event.late) : std::string("wait for another host"));
    unwritten_ += "}}";
  }
  if (unwritten_.size() > kMostUnwritten) Flush();
}

void TraceFile::Flush() {
  size_t done = 0;
  while (done < unwritten_.size() && !failed_) {
    const ssize_t n = write(file_.get(), unwritten_.data() + done, unwritten_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    failed_ = n < 0;
    if (!failed_) done += static_cast<size_t>(n);
  }
  bytes_ += static_cast<int64_t>(done);
  unwritten_.clear();
}

void TraceFile::WriteEnd(int64_t dropped) {
  Append(StrCat(",\n{\"ph\":\"M\",\"name\":\"lockstep_end\",\"pid\":", rank_, ",\"tid\":0,\"args\":{\"events\":",
                events_, ",\"dropped\":", dropped, ",\"full\":", full_ ? "true" : "false", "}}\n]\n"));
  Flush();
}

}  // namespace lockstep
