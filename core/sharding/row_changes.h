#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/parallel.h"
#include "core/sharding/placement.h"

namespace lockstep {

// Finds the rows of a rank's share of a table that differ from the last checkpoint's rows, for any cause: an optimizer,
// an assignment, a program's array. It compares fingerprints of 64 bits, which take 8 bytes for each row. (A changed
// row goes unnoticed with a chance of 2^-64. Marks by those who change rows would take less memory, but TensorFlow's
// own operations make none.)
// ```
// RowChanges rows(base, count, row_bytes, parallel);      the checkpoint's rows
// ... training
// rows.Find({0, count}, base, &changes);                  those that differ now
// rows.Accept(changes);                                   a checkpoint of them is complete
// ```
// Calls exclude each other.
class RowChanges {
 public:
  struct Change {
    uint32_t row;
    uint64_t fingerprint;
  };

  // rows: [count, row_bytes], less than 2^32 of them.
  RowChanges(const char* rows, int64_t count, int64_t row_bytes, const ParallelFor& parallel);

  // Appends to `changes` which of the rows `part` differ, in ascending order. rows: [part.count(), row_bytes], as they
  // are now.
  void Find(RowRange part, const char* rows, std::vector<Change>* changes) const;
  // Takes the rows as the last checkpoint's rows.
  void Accept(std::span<const Change> changes);
  // The same for the rows `part`. rows: [part.count(), row_bytes].
  void Accept(RowRange part, const char* rows);

  int64_t row_bytes() const { return row_bytes_; }

 private:
  uint64_t FingerprintOf(const char* row) const;

  int64_t row_bytes_;
  std::vector<uint64_t> fingerprints_;  // [count]
};

}  // namespace lockstep
