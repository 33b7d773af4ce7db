#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace lockstep {

// The order in which the terms of a sum are added, for gradients of a row: in blocks of so many terms, and the sums of
// the blocks in order. A frequent row has a large share of a batch. In one sequence its additions would wait for each
// other, on any machine; blocks can be added side by side, with the same bits.
inline constexpr int64_t kBlockTerms = 256;

// Adds blocks for code that meets the terms of many rows one after another. Such code adds a row's terms to a sum, and
// calls Take when the block is complete; the sum then begins again. Rows of up to kBlockTerms terms, which are most,
// cost nothing.
// ```cpp
// BlockTotals<float> totals(width);
// if (terms_of[row] == kBlockTerms) totals.Take(row, sum_of(row));     // and sum_of(row) becomes the next term
// ...
// totals.AddTo(sum_of);                                                // in the end
// ```
// S: the type of the sums. Not thread-safe.
template <typename S>
class BlockTotals {
 public:
  explicit BlockTotals(int64_t width) : width_(width) {}

  // Adds a row's complete block, [width].
  void Take(uint32_t row, const S* sum) {
    const auto [at, is_first] = begins_.try_emplace(row, totals_.size());
    if (is_first) {
      totals_.insert(totals_.end(), sum, sum + width_);
      return;
    }
    S* const total = totals_.data() + at->second;
    for (int64_t d = 0; d < width_; ++d) total[d] += sum[d];
  }

  // Adds each row's blocks to the sum of its last one: sum_of(row) is [width].
  template <typename SumOf>
  void AddTo(const SumOf& sum_of) const {
    for (const auto& [row, begin] : begins_) {
      S* const sum = sum_of(row);
      const S* const total = totals_.data() + begin;
      // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDelete): a row with a total has memory for its sum.
      for (int64_t d = 0; d < width_; ++d) sum[d] = total[d] + sum[d];
    }
  }

 private:
  const int64_t width_;
  std::unordered_map<uint32_t, size_t> begins_;  // where the total of a row begins
  std::vector<S> totals_;
};

}  // namespace lockstep
