#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace lockstep {

// Sixteen random bytes that are a function of a counter of sixteen and a key of eight: Philox4x32-10 (Salmon et al.,
// "Parallel random numbers: as easy as 1, 2, 3", 2011). There is no state: any number of the sequence can be asked for
// at any time, by any thread.
struct PhiloxBlock {
  uint32_t word[4];
};
PhiloxBlock Philox(const PhiloxBlock& counter, uint32_t key_low, uint32_t key_high);

// What a row is before its first update.
struct InitialOptions {
  enum class Kind : uint8_t {
    kConstant,         // `a`
    kUniform,          // between `a` and `b`, `b` excluded but for rounding
    kNormal,           // mean `a`, standard deviation `b`
    kTruncatedNormal,  // of the same, only what is within two standard deviations of the mean
    kRows,             // row `key mod K` of a matrix of K rows, for whatever else draws them
  };
  Kind kind = Kind::kConstant;
  float a = 0;
  float b = 1;
  uint64_t seed = 0;
  std::shared_ptr<const std::vector<float>> rows = nullptr;  // [K, D], for kRows alone

  // INVALID_ARGUMENT for what is not finite, an empty range, a negative standard deviation, no whole rows of `dim`.
  Status Validate(int64_t dim) const;
};

// The initial values of a table's rows: a function of seed, table and key alone, bit for bit the same whatever the
// order, the thread, the number of workers and the processor. (Python's tables/sharded/initial_values.py promises the
// same of static tables, by other means: there the whole table can be drawn.) Element i of a row comes from word i % 4
// of the Philox block of counter (key, i / 4, 0), with seed and table for its key.
//
// Normal values invert the distribution (Wichura's AS 241, PPND7: seven digits), from 31 bits and a sign: so at
// most 6.3 standard deviations, and truncation takes no second draw. Thread-safe.
class InitialValues {
 public:
  // `table` is what makes the rows of tables with one seed differ: its name. Options are valid.
  InitialValues(const InitialOptions& options, std::string_view table);

  // row: [dim], written.
  void Fill(int64_t key, float* row, int64_t dim) const;

 private:
  InitialOptions options_;
  uint64_t stream_;  // Philox' key
};

}  // namespace lockstep
