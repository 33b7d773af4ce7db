#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace lockstep {

// Returns sixteen random bytes that are a function of a counter of sixteen bytes and a key of eight: Philox4x32-10
// (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). It has no state: any thread can ask for any
// number of the sequence at any time.
struct PhiloxBlock {
  uint32_t word[4];
};
PhiloxBlock Philox(const PhiloxBlock& counter, uint32_t key_low, uint32_t key_high);

// The values of a row before its first update.
struct InitialOptions {
  enum class Kind : uint8_t {
    kConstant,         // `a`
    kUniform,          // between `a` and `b`; `b` is excluded except for rounding
    kNormal,           // mean `a`, standard deviation `b`
    kTruncatedNormal,  // the same, within two standard deviations of the mean
    kRows,             // row `key mod K` of a matrix of K rows, for any other distribution
  };
  Kind kind = Kind::kConstant;
  float a = 0;
  float b = 1;
  uint64_t seed = 0;
  std::shared_ptr<const std::vector<float>> rows = nullptr;  // [K, D], only for kRows

  // Returns INVALID_ARGUMENT for infinite values or NaN, an empty range, a negative deviation, and rows that do not fit
  // `dim`.
  Status Validate(int64_t dim) const;
};

// The initial values of a table's rows, a function of only seed, table and key. They are the same bit for bit in any
// order, on any thread, number of workers and processor. Element i of a row comes from word i % 4 of the Philox block
// of counter (key, i / 4, 0); the Philox key is made of seed and table. (Python's tables/sharded/initial_values.py
// promises the same for static tables. It can draw a whole table and does so by other means.)
//
// Normal values invert the distribution (Wichura's AS 241, PPND7: seven digits), from 31 bits and a sign. So they lie
// within 6.3 standard deviations, and truncation needs no second draw. Thread-safe.
class InitialValues {
 public:
  // `table` is the table's name, by which tables with one seed get different rows. Options are valid.
  InitialValues(const InitialOptions& options, std::string_view table);

  // Writes row: [dim].
  void Fill(int64_t key, float* row, int64_t dim) const;

 private:
  InitialOptions options_;
  uint64_t stream_;  // the key of Philox
};

}  // namespace lockstep
