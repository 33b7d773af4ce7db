#include "core/sharding/row_moment.h"

#include <cstring>

namespace lockstep {

RowMoment::RowMoment(const void* rows, int64_t count, int64_t row_bytes)
    : rows_(static_cast<const char*>(rows)), row_bytes_(row_bytes), kept_((count + kWordBits - 1) / kWordBits, 0) {}

void RowMoment::BeforeChange(std::span<const uint32_t> numbers) {
  for (const uint32_t number : numbers) {
    if (IsKept(number)) continue;
    Keep(number);
    if (copied_ % kBlockRows == 0) blocks_.push_back(std::make_unique_for_overwrite<char[]>(kBlockRows * row_bytes_));
    std::memcpy(Aside(copied_), Row(number), row_bytes_);
    places_.emplace(number, copied_++);
  }
}

void RowMoment::Read(RowRange rows, void* out) {
  auto* to = static_cast<char*>(out);
  int64_t row = rows.begin;
  while (row < rows.end) {
    // Rows that are still in their places lie in runs.
    int64_t end = row;
    for (; end < rows.end && !IsKept(end); ++end) Keep(end);
    if (end > row) {
      std::memcpy(to, Row(row), (end - row) * row_bytes_);
      to += (end - row) * row_bytes_;
      row = end;
      continue;
    }
    const auto aside = places_.find(static_cast<uint32_t>(row));
    std::memcpy(to, Aside(aside->second), row_bytes_);
    places_.erase(aside);
    to += row_bytes_;
    ++row;
  }
}

}  // namespace lockstep
