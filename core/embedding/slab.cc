#include "core/embedding/slab.h"

#include <algorithm>

#include "core/base/strings.h"

namespace lockstep {
namespace {

constexpr int64_t kChunkRows = int64_t{1} << Slab::kChunkShift;
// The first chunk begins with small pages, because most tables are small.
constexpr int64_t kSmallBytes = int64_t{2} << 20;

}  // namespace

Status Slab::Reserve(Column& column, int64_t rows) {
  char** directory = reinterpret_cast<char**>(column.directory.data());
  while (static_cast<int64_t>(column.chunks.size()) * kChunkRows < rows) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        Pages chunk, Pages::Allocate(kChunkRows * column.view.stride, column.chunks.empty() ? kSmallBytes : 0));
    directory[column.chunks.size()] = chunk.data();
    column.chunks.push_back(std::move(chunk));
  }
  return OkStatus();
}

Result<int> Slab::AddColumn(int64_t stride) {
  const MutexLock lock(mutex_);
  Column column;
  LOCKSTEP_ASSIGN_OR_RETURN(column.directory, Pages::Allocate(((kMaxRows >> kChunkShift) + 1) * sizeof(char*)));
  column.view = RowView::Chunked(reinterpret_cast<char* const*>(column.directory.data()), kChunkShift, stride);
  LOCKSTEP_RETURN_IF_ERROR(Reserve(column, end_.load(std::memory_order_relaxed)));
  columns_.push_back(std::move(column));
  return static_cast<int>(columns_.size()) - 1;
}

RowView Slab::column(int number) const {
  const MutexLock lock(mutex_);
  return columns_[number].view;
}

Status Slab::Take(std::span<uint32_t> rows) {
  const MutexLock lock(mutex_);
  const int64_t end = end_.load(std::memory_order_relaxed);
  const int64_t reused = std::min(free_.size(), rows.size());
  const int64_t made = static_cast<int64_t>(rows.size()) - reused;
  if (end + made > kMaxRows) return ResourceExhausted(StrCat("embedding table: more than ", kMaxRows, " rows"));
  for (Column& column : columns_) LOCKSTEP_RETURN_IF_ERROR(Reserve(column, end + made));
  for (int64_t i = 0; i < reused; ++i) {
    rows[i] = free_.back();
    free_.pop_back();
  }
  for (int64_t i = 0; i < made; ++i) rows[reused + i] = static_cast<uint32_t>(end + i);
  end_.store(end + made, std::memory_order_release);
  return OkStatus();
}

void Slab::Give(std::span<const uint32_t> rows) {
  const MutexLock lock(mutex_);
  free_.insert(free_.end(), rows.begin(), rows.end());
}

int64_t Slab::taken() const {
  const MutexLock lock(mutex_);
  return end_.load(std::memory_order_relaxed) - static_cast<int64_t>(free_.size());
}

int64_t Slab::bytes() const {
  const MutexLock lock(mutex_);
  int64_t row_bytes = 0;
  for (const Column& column : columns_) row_bytes += column.view.stride;
  return row_bytes * end_.load(std::memory_order_relaxed);
}

}  // namespace lockstep
