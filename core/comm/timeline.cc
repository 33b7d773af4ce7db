#include "core/comm/timeline.h"

#include <errno.h>
#include <string.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "core/base/dtype.h"
#include "core/base/strings.h"

namespace lockstep {
namespace {

// The row of marks that belong to no tensor.
constexpr char kCycles[] = "";

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", c);
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string PartName(NamedKind kind) {
  std::string name(NamedKindName(kind));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  return name;
}

// "" where there is nothing to be said of the tensor.
std::string DescribeRequest(const NamedRequest& request) {
  if (request.kind == NamedKind::kBarrier || request.kind == NamedKind::kJoin) return "";
  return StrCat(",\"args\":{\"dtype\":\"", DTypeName(request.dtype), "\",\"shape\":\"", ShapeText(request.shape),
                "\"}");
}

}  // namespace

Status Timeline::Start(const std::string& path, bool mark_cycles) {
  const std::lock_guard lock(mutex_);
  LOCKSTEP_RETURN_IF_ERROR(StopLocked());
  file_ = std::fopen(path.c_str(), "we");
  if (file_ == nullptr) return InvalidArgument(StrCat("timeline ", path, ": ", strerror(errno)));
  mark_cycles_ = mark_cycles;
  is_empty_ = true;
  failed_ = false;
  started_ = std::chrono::steady_clock::now();
  rows_.clear();
  on_.store(true, std::memory_order_relaxed);
  return OkStatus();
}

Status Timeline::Stop() {
  const std::lock_guard lock(mutex_);
  return StopLocked();
}

Status Timeline::StopLocked() {
  if (file_ == nullptr) return OkStatus();
  on_.store(false, std::memory_order_relaxed);
  // What is not done yet ends here.
  for (auto& [name, row] : rows_) {
    EndParts(row, 0);
    if (std::exchange(row.negotiates, false)) Event('E', row.number, "");
  }
  failed_ |= std::fputs(is_empty_ ? "[]\n" : "\n]\n", file_) < 0;
  failed_ |= std::fclose(std::exchange(file_, nullptr)) != 0;
  return failed_ ? ResourceExhausted("the timeline could not be written to its end") : OkStatus();
}

void Timeline::Asked(const NamedRequest& request, int rank) {
  if (!on()) return;
  const std::lock_guard lock(mutex_);
  if (file_ == nullptr) return;
  Row& row = RowOf(request.name);
  if (!std::exchange(row.negotiates, true)) Event('B', row.number, "NEGOTIATE_" + PartName(request.kind));
  Event('X', row.number, StrCat(rank), ",\"dur\":0");
}

void Timeline::Ordered(const NamedRequest& request) {
  if (!on()) return;
  const std::lock_guard lock(mutex_);
  if (file_ == nullptr) return;
  Row& row = RowOf(request.name);
  // It may have been asked for before Start.
  if (std::exchange(row.negotiates, false)) Event('E', row.number, "NEGOTIATE_" + PartName(request.kind));
  Event('B', row.number, PartName(request.kind), DescribeRequest(request));
  Event('B', row.number, "QUEUE");
  row.depth = 2;
}

void Timeline::Begin(const NamedBatch& batch) {
  if (!on()) return;
  const std::lock_guard lock(mutex_);
  if (file_ == nullptr) return;
  for (const NamedBatch::Entry& entry : batch.entries) {
    // One that was ordered before Start has no row, and gets none.
    const auto found = rows_.find(entry.request.name);
    if (found == rows_.end() || found->second.depth != 2) continue;
    Row& row = found->second;
    EndParts(row, 1);
    Event('B', row.number, "EXCHANGE", StrCat(",\"args\":{\"tensors\":", batch.entries.size(), "}"));
    row.depth = 2;
  }
}

void Timeline::End(const NamedBatch& batch) {
  if (!on()) return;
  const std::lock_guard lock(mutex_);
  if (file_ == nullptr) return;
  for (const NamedBatch::Entry& entry : batch.entries) {
    const auto found = rows_.find(entry.request.name);
    if (found != rows_.end()) EndParts(found->second, 0);
  }
  failed_ |= std::fflush(file_) != 0;
}

void Timeline::Cycle() {
  if (!on()) return;
  const std::lock_guard lock(mutex_);
  if (file_ != nullptr && mark_cycles_) Event('i', RowOf(kCycles).number, "CYCLE_START", ",\"s\":\"g\"");
}

Timeline::Row& Timeline::RowOf(const std::string& name) {
  const auto [found, is_new] = rows_.try_emplace(name, Row{static_cast<int>(rows_.size())});
  Row& row = found->second;
  if (is_new) {
    const std::string title = Quoted(name == kCycles ? "cycles" : name);
    Write(StrCat("{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":", row.number, ",\"args\":{\"name\":", title, "}}"));
    Write(StrCat("{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":", row.number,
                 ",\"args\":{\"sort_index\":", row.number, "}}"));
  }
  return row;
}

void Timeline::EndParts(Row& row, int depth) {
  for (; row.depth > depth; --row.depth) Event('E', row.number, "");
}

void Timeline::Event(char phase, int row, const std::string& name, const std::string& more) {
  const auto since = std::chrono::steady_clock::now() - started_;
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(since).count();
  const std::string title = name.empty() ? "" : StrCat("\"name\":\"", name, "\",");
  Write(StrCat("{\"ph\":\"", phase, "\",", title, "\"ts\":", us, ",\"pid\":", row, ",\"tid\":0", more, "}"));
}

void Timeline::Write(const std::string& event) {
  failed_ |= std::fputs(std::exchange(is_empty_, false) ? "[\n" : ",\n", file_) < 0;
  failed_ |= std::fputs(event.c_str(), file_) < 0;
}

}  // namespace lockstep
