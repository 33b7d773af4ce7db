#include "core/sharding/row_moment.h"

#include <array>
#include <cstring>
#include <utility>

namespace lockstep {

RowMoment::RowMoment(const void* rows, int64_t count, int64_t row_bytes)
    : rows_(static_cast<const char*>(rows)),
      row_bytes_(row_bytes),
      kept_((count + kGroupRows - 1) / kGroupRows, 0),
      last_(kept_.size(), kNone) {}

void RowMoment::BeforeChange(std::span<const uint32_t> numbers) {
  for (const uint32_t number : numbers) {
    if (IsKept(number)) continue;
    if (copied_ % kBlockRows == 0) {
      auto rows = std::make_unique_for_overwrite<char[]>(kBlockRows * row_bytes_);
      auto aside = std::make_unique_for_overwrite<Aside[]>(kBlockRows);
      blocks_.push_back({std::move(rows), std::move(aside)});
    }
    const uint32_t place = ++copied_;
    uint32_t& last = last_[number / kGroupRows];
    std::memcpy(RowAside(place), Row(number), row_bytes_);
    AsideAt(place) = {number % static_cast<uint32_t>(kGroupRows), last};
    last = place;
    Keep(number);
  }
}

void RowMoment::Read(RowRange rows, void* out) {
  Peek(rows, out);
  for (int64_t row = rows.begin; row < rows.end; ++row) Keep(row);
}

void RowMoment::Peek(RowRange rows, void* out) const {
  auto* to = static_cast<char*>(out);
  std::array<uint32_t, kGroupRows> places;  // of the rows of `group` that were copied aside
  int64_t group = -1;
  int64_t row = rows.begin;
  while (row < rows.end) {
    // Rows that are still in their places lie in runs.
    int64_t end = row;
    while (end < rows.end && !IsKept(end)) ++end;
    const char* from = Row(row);
    if (end == row) {
      ++end;
      if (row / kGroupRows != group) {
        group = row / kGroupRows;
        for (uint32_t place = last_[group]; place != kNone; place = AsideAt(place).previous) {
          places[AsideAt(place).row] = place;
        }
      }
      from = RowAside(places[row % kGroupRows]);
    }
    std::memcpy(to, from, (end - row) * row_bytes_);
    to += (end - row) * row_bytes_;
    row = end;
  }
}

}  // namespace lockstep
