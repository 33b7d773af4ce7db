#include "core/comm/named/timeline.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "core/base/dtype.h"
#include "core/base/json_text.h"
#include "core/base/strings.h"

namespace lockstep {
namespace {

// The row for marks that belong to no tensor.
constexpr char kCycles[] = "cycles";

// Written before the end of an exchange if none ends for a long time.
constexpr size_t kMostUnwritten = size_t{1} << 20;

std::string PartName(NamedKind kind) {
  std::string name(NamedKindName(kind));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  return name;
}

// "" if there is nothing to say about the tensor.
std::string DescribeRequest(const NamedRequest& request) {
  if (request.kind == NamedKind::kBarrier || request.kind == NamedKind::kJoin) return "";
  return StrCat(",\"args\":{\"dtype\":\"", DTypeName(request.dtype), "\",\"shape\":\"", ShapeText(request.shape),
                "\"}");
}

}  // namespace

Status Timeline::Start(const std::string& path, bool mark_cycles) {
  const MutexLock lock(mutex_);
  LOCKSTEP_RETURN_IF_ERROR(StopLocked());
  // Without the buffers of stdio, which a fork would write a second time when it exits.
  file_ = UniqueFd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file_.valid()) return InvalidArgument(StrCat("timeline ", path, ": ", strerror(errno)));
  mark_cycles_ = mark_cycles;
  is_empty_ = true;
  failed_ = false;
  started_ = std::chrono::steady_clock::now();
  rows_ = 0;
  used_.clear();
  free_.clear();
  unwritten_.clear();
  on_.store(true, std::memory_order_relaxed);
  return OkStatus();
}

Status Timeline::Stop() {
  // The lock may be held by a thread that does not exist in the fork.
  if (fork_.InFork()) return OkStatus();
  const MutexLock lock(mutex_);
  return StopLocked();
}

Status Timeline::StopLocked() {
  if (!IsOn()) return OkStatus();
  on_.store(false, std::memory_order_relaxed);
  // Ends what is still in progress.
  for (auto& [name, row] : used_) EndAll(row);
  unwritten_ += is_empty_ ? "[]\n" : "\n]\n";
  Flush();
  file_ = UniqueFd();
  return failed_ ? ResourceExhausted("the timeline could not be written to its end") : OkStatus();
}

void Timeline::Requested(const NamedRequest& request, int rank) {
  if (!on()) return;
  const MutexLock lock(mutex_);
  if (!IsOn()) return;
  Row& row = RowOf(request);
  if (!std::exchange(row.negotiates, true)) Event('B', row.number, "NEGOTIATE_" + PartName(request.kind));
  Event('X', row.number, StrCat(rank), ",\"dur\":0");
}

void Timeline::Ordered(const NamedBatch& batch) {
  if (!on()) return;
  const MutexLock lock(mutex_);
  if (!IsOn()) return;
  for (const NamedBatch::Entry& entry : batch.entries) {
    const NamedRequest& request = entry.request;
    if (!batch.error.ok()) {
      if (Row* const row = FindRow(request.name)) EndAll(*row);
      continue;
    }
    Row& row = RowOf(request);
    // It may have been requested before Start.
    if (std::exchange(row.negotiates, false)) Event('E', row.number, "NEGOTIATE_" + PartName(request.kind));
    Event('B', row.number, PartName(request.kind), DescribeRequest(request));
    Event('B', row.number, "QUEUE");
    row.depth = 2;
  }
}

void Timeline::Begin(const NamedBatch& batch) {
  if (!on()) return;
  const MutexLock lock(mutex_);
  if (!IsOn()) return;
  for (const NamedBatch::Entry& entry : batch.entries) {
    // A tensor that was ordered before Start has no row, and gets none.
    Row* const row = FindRow(entry.request.name);
    if (row == nullptr || row->depth != 2) continue;
    EndParts(*row, 1);
    Event('B', row->number, "EXCHANGE", StrCat(",\"args\":{\"tensors\":", batch.entries.size(), "}"));
    row->depth = 2;
  }
}

void Timeline::End(const NamedBatch& batch) {
  if (!on()) return;
  const MutexLock lock(mutex_);
  if (!IsOn()) return;
  for (const NamedBatch::Entry& entry : batch.entries) {
    Row* const row = FindRow(entry.request.name);
    // If it failed, its row may already belong to the next request of that name.
    if (row == nullptr || row->negotiates) continue;
    EndAll(*row);
    auto node = used_.extract(entry.request.name);
    std::vector<Row>& others = free_[node.mapped().title];
    others.push_back(std::move(node.mapped()));
  }
  Flush();
}

void Timeline::Cycle() {
  if (!on()) return;
  const MutexLock lock(mutex_);
  if (!IsOn() || !mark_cycles_) return;
  std::vector<Row>& rows = free_[kCycles];
  if (rows.empty()) rows.push_back(NewRow(kCycles));
  Event('i', rows.front().number, "CYCLE_START", ",\"s\":\"g\"");
}

Timeline::Row* Timeline::FindRow(const std::string& name) {
  const auto found = used_.find(name);
  return found == used_.end() ? nullptr : &found->second;
}

Timeline::Row& Timeline::RowOf(const NamedRequest& request) {
  if (Row* const row = FindRow(request.name)) return *row;
  const std::string& title = request.family.empty() ? request.name : request.family;
  const auto found = free_.find(title);
  if (found == free_.end() || found->second.empty()) return used_.emplace(request.name, NewRow(title)).first->second;
  Row row = std::move(found->second.back());
  found->second.pop_back();
  return used_.emplace(request.name, std::move(row)).first->second;
}

Timeline::Row Timeline::NewRow(const std::string& title) {
  const int number = rows_++;
  Write(StrCat("{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":", number, ",\"args\":{\"name\":", JsonText(title),
               "}}"));
  Write(StrCat("{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":", number, ",\"args\":{\"sort_index\":", number,
               "}}"));
  return {number, title};
}

void Timeline::EndAll(Row& row) {
  EndParts(row, 0);
  if (std::exchange(row.negotiates, false)) Event('E', row.number, "");
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
  unwritten_ += std::exchange(is_empty_, false) ? "[\n" : ",\n";
  unwritten_ += event;
  if (unwritten_.size() > kMostUnwritten) Flush();
}

void Timeline::Flush() {
  size_t done = 0;
  while (done < unwritten_.size()) {
    const ssize_t n = write(file_.get(), unwritten_.data() + done, unwritten_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    failed_ |= n < 0;
    if (n < 0) break;
    done += static_cast<size_t>(n);
  }
  unwritten_.clear();
}

}  // namespace lockstep
