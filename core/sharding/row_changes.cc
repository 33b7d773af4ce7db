#include "core/sharding/row_changes.h"

#include <string_view>

#include "core/base/hash.h"

namespace lockstep {

namespace {

// Rows that a thread takes at a time.
constexpr int64_t kGrain = 4096;

}  // namespace

RowChanges::RowChanges(const char* rows, int64_t count, int64_t row_bytes, const ParallelFor& parallel)
    : row_bytes_(row_bytes), fingerprints_(count) {
  parallel(count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) fingerprints_[row] = FingerprintOf(rows + row * row_bytes_);
  });
}

void RowChanges::Find(RowRange part, const char* rows, std::vector<Change>* changes) const {
  for (int64_t row = part.begin; row < part.end; ++row, rows += row_bytes_) {
    const uint64_t now = FingerprintOf(rows);
    if (now != fingerprints_[row]) changes->push_back({static_cast<uint32_t>(row), now});
  }
}

void RowChanges::Accept(std::span<const Change> changes) {
  for (const Change& change : changes) fingerprints_[change.row] = change.fingerprint;
}

void RowChanges::Accept(RowRange part, const char* rows) {
  for (int64_t row = part.begin; row < part.end; ++row, rows += row_bytes_) fingerprints_[row] = FingerprintOf(rows);
}

uint64_t RowChanges::FingerprintOf(const char* row) const {
  return Fingerprint(std::string_view(row, static_cast<size_t>(row_bytes_)));
}

}  // namespace lockstep
