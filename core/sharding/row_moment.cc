#include "core/sharding/row_moment.h"

#include <algorithm>
#include <cstring>

namespace lockstep {

RowMoment::RowMoment(const void* rows, int64_t count, int64_t row_bytes)
    : rows_(static_cast<const char*>(rows)),
      row_bytes_(row_bytes),
      kept_((count + kWordBits - 1) / kWordBits, 0),
      places_((count + kBlockRows - 1) / kBlockRows) {}

void RowMoment::Places::Add(uint32_t row, uint32_t place) {
  if (all == nullptr && few.size() < kMostListed) {
    few.push_back({row, place});
    return;
  }
  if (all == nullptr) {
    all = std::make_unique_for_overwrite<uint32_t[]>(kBlockRows);
    for (const Listed& listed : few) all[listed.row] = listed.place;
    few = {};
  }
  all[row] = place;
}

uint32_t RowMoment::Places::Of(uint32_t row) const {
  if (all != nullptr) return all[row];
  return std::find_if(few.begin(), few.end(), [row](const Listed& listed) { return listed.row == row; })->place;
}

void RowMoment::BeforeChange(std::span<const uint32_t> numbers) {
  for (const uint32_t number : numbers) {
    if (IsKept(number)) continue;
    Keep(number);
    if (copied_ % kBlockRows == 0) blocks_.push_back(std::make_unique_for_overwrite<char[]>(kBlockRows * row_bytes_));
    std::memcpy(Aside(copied_), Row(number), row_bytes_);
    places_[number / kBlockRows].Add(number % kBlockRows, copied_++);
  }
}

void RowMoment::Read(RowRange rows, void* out) {
  Peek(rows, out);
  for (int64_t row = rows.begin; row < rows.end; ++row) Keep(row);
}

void RowMoment::Peek(RowRange rows, void* out) const {
  auto* to = static_cast<char*>(out);
  int64_t row = rows.begin;
  while (row < rows.end) {
    // Rows that are still in their places lie in runs.
    int64_t end = row;
    while (end < rows.end && !IsKept(end)) ++end;
    const int64_t count = std::max<int64_t>(1, end - row);
    const char* const from = end > row ? Row(row) : Aside(Place(row));
    std::memcpy(to, from, count * row_bytes_);
    to += count * row_bytes_;
    row += count;
  }
}

}  // namespace lockstep
