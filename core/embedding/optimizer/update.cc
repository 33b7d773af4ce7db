// Positions are first dealt out to parts by a hash of their rows, in order; a part then holds all positions of its
// rows, finds the duplicates with a table that lies in the cache, and updates its rows without regard to the others. So
// the parts run in parallel, and how many threads there are changes nothing.
#include "core/embedding/optimizer/update.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/prefetch.h"

namespace lockstep {
namespace {

// Positions of a part, on average: its table and its gradients of 16 dimensions fit into the second-level cache.
constexpr int64_t kPartPositions = 2048;
constexpr int64_t kMaxParts = 256;
// Positions that are dealt out together.
constexpr int64_t kBlockPositions = 8192;
// Rows that a kernel gets at once.
constexpr int64_t kRun = 1024;

uint32_t HashRow(uint32_t number) { return number * 0x9E3779B9u; }

void AddTo(float* __restrict sum, const float* __restrict gradient, int64_t dim) {
  for (int64_t i = 0; i < dim; ++i) sum[i] += gradient[i];
}

void Run(const UpdateTarget& target, const UpdateRule& rule, const uint32_t* numbers, const float* const* gradients,
         int64_t count, const BeforeUpdate& before) {
  if (count == 0) return;
  if (before) before({numbers, static_cast<size_t>(count)});
  rule.function({target.rows, target.slots, target.dim, numbers, gradients, count, target.keys, target.rounding},
                rule.parameters.data());
}

// The positions of all parts, one part after another, each in ascending order; those without a row are left out.
struct Parts {
  std::vector<int64_t> begins;  // [parts + 1]
  std::unique_ptr<uint32_t[]> positions;
};

Parts DealOut(std::span<const uint32_t> numbers, const ParallelFor& parallel) {
  const auto count = static_cast<int64_t>(numbers.size());
  const auto parts = static_cast<int64_t>(
      std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(count / kPartPositions, 1, kMaxParts))));
  const int shift = 32 - std::countr_zero(static_cast<uint64_t>(parts));
  // With one part the shift would be by all bits.
  const auto part_of = [&](uint32_t number) { return parts == 1 ? 0 : HashRow(number) >> shift; };
  const int64_t blocks = (count + kBlockPositions - 1) / kBlockPositions;
  const auto each_block = [&](auto&& work) {
    parallel(blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        work(block, block * kBlockPositions, std::min(count, (block + 1) * kBlockPositions));
      }
    });
  };
  // How many positions of a block go to a part; then where its first one goes.
  std::vector<uint32_t> places(blocks * parts, 0);
  each_block([&](int64_t block, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (numbers[i] != kNoRow) ++places[block * parts + part_of(numbers[i])];
    }
  });
  Parts result{std::vector<int64_t>(parts + 1, 0), std::make_unique_for_overwrite<uint32_t[]>(count)};
  uint32_t place = 0;
  for (int64_t part = 0; part < parts; ++part) {
    for (int64_t block = 0; block < blocks; ++block) {
      place += std::exchange(places[block * parts + part], place);
    }
    result.begins[part + 1] = place;
  }
  each_block([&](int64_t block, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (numbers[i] == kNoRow) continue;
      result.positions[places[block * parts + part_of(numbers[i])]++] = static_cast<uint32_t>(i);
    }
  });
  return result;
}

// The distinct rows of a part, in order of appearance, each with its gradient: the position's own where there is one
// alone, otherwise their sum.
class Distinct {
 public:
  Distinct(std::span<const uint32_t> positions, const uint32_t* numbers, const float* gradients, int64_t dim)
      : slots_(std::bit_ceil(2 * positions.size() + 1), 0), shift_(32 - std::countr_zero(slots_.size())), dim_(dim) {
    numbers_.reserve(positions.size());
    gradients_.reserve(positions.size());
    sum_of_.reserve(positions.size());
    for (size_t i = 0; i < positions.size(); ++i) {
      // Positions of a part lie anywhere in the batch.
      constexpr size_t kAhead = 12;
      if (i + kAhead < positions.size()) {
        PrefetchForRead(gradients + positions[i + kAhead] * dim);
        PrefetchForRead(numbers + positions[i + kAhead]);
      }
      Add(numbers[positions[i]], gradients + positions[i] * dim);
    }
    for (size_t i = 0; i < sum_of_.size(); ++i) {
      if (sum_of_[i] >= 0) gradients_[i] = sums_.data() + sum_of_[i];
    }
  }

  const std::vector<uint32_t>& numbers() const { return numbers_; }
  const std::vector<const float*>& gradients() const { return gradients_; }

 private:
  void Add(uint32_t number, const float* gradient) {
    const size_t mask = slots_.size() - 1;
    for (size_t i = HashAgain(number) >> shift_;; i = (i + 1) & mask) {
      if (slots_[i] == 0) {
        numbers_.push_back(number);
        gradients_.push_back(gradient);
        sum_of_.push_back(-1);
        slots_[i] = static_cast<uint32_t>(numbers_.size());
        return;
      }
      const uint32_t found = slots_[i] - 1;
      if (numbers_[found] != number) continue;
      if (sum_of_[found] < 0) {
        sum_of_[found] = static_cast<int64_t>(sums_.size());
        sums_.insert(sums_.end(), gradients_[found], gradients_[found] + dim_);
      }
      AddTo(sums_.data() + sum_of_[found], gradient, dim_);
      return;
    }
  }

  // Not HashRow: within a part, its high bits are all the same.
  static uint32_t HashAgain(uint32_t number) { return (number ^ number >> 15) * 0x85EBCA6Bu; }

  std::vector<uint32_t> slots_;  // 1 + the place of a row among the distinct ones; 0: free
  const int shift_;
  const int64_t dim_;
  std::vector<uint32_t> numbers_;
  std::vector<const float*> gradients_;
  std::vector<int64_t> sum_of_;  // where the row's sum begins in sums_; -1: it has a gradient alone
  std::vector<float> sums_;
};

}  // namespace

void ApplyUpdate(const UpdateTarget& target, const UpdateRule& rule, std::span<const uint32_t> numbers,
                 const float* gradients, const ParallelFor& parallel, const BeforeUpdate& before) {
  const Parts parts = DealOut(numbers, parallel);
  parallel(static_cast<int64_t>(parts.begins.size()) - 1, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const std::span positions(parts.positions.get() + parts.begins[part],
                                parts.positions.get() + parts.begins[part + 1]);
      const Distinct distinct(positions, numbers.data(), gradients, target.dim);
      Run(target, rule, distinct.numbers().data(), distinct.gradients().data(),
          static_cast<int64_t>(distinct.numbers().size()), before);
    }
  });
}

void ApplyDistinctUpdate(const UpdateTarget& target, const UpdateRule& rule, std::span<const uint32_t> numbers,
                         const float* gradients, const ParallelFor& parallel, const BeforeUpdate& before) {
  parallel(static_cast<int64_t>(numbers.size()), kRun, [&](int64_t begin, int64_t end) {
    std::array<uint32_t, kRun> rows;
    std::array<const float*, kRun> pointers;
    while (begin < end) {
      int64_t count = 0;
      for (; begin < end && count < kRun; ++begin) {
        if (numbers[begin] == kNoRow) continue;
        rows[count] = numbers[begin];
        pointers[count++] = gradients + begin * target.dim;
      }
      Run(target, rule, rows.data(), pointers.data(), count, before);
    }
  });
}

void ApplyZeroGradients(const UpdateTarget& target, const UpdateRule& rule, int64_t end, std::span<const uint8_t> skip,
                        const ParallelFor& parallel, const BeforeUpdate& before) {
  const std::vector<float> zeros(target.dim, 0.0f);
  std::array<const float*, kRun> pointers;
  pointers.fill(zeros.data());
  parallel(end, kRun, [&](int64_t next, int64_t last) {
    std::array<uint32_t, kRun> rows;
    while (next < last) {
      int64_t count = 0;
      for (; next < last && count < kRun; ++next) {
        if (skip[next] == 0) rows[count++] = static_cast<uint32_t>(next);
      }
      Run(target, rule, rows.data(), pointers.data(), count, before);
    }
  });
}

}  // namespace lockstep
