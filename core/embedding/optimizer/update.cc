// Positions are first distributed to parts by a hash of their rows, in order. A part then has all positions of its
// rows. It finds the duplicates with a hash table that fits the cache, and updates its rows independently of other
// parts. So the parts run in parallel, and the number of threads does not affect the result.
#include "core/embedding/optimizer/update.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "core/base/block_totals.h"
#include "core/base/prefetch.h"

namespace lockstep {
namespace {

// The bytes of a part's gradients, on average. With its rows, slots, sums and hash table they fit the second-level
// cache.
constexpr int64_t kPartBytes = 64 << 10;
constexpr int64_t kLeastPartPositions = 128, kMostPartPositions = 2048;
constexpr int64_t kMaxParts = 256;
// The number of positions that are distributed together.
constexpr int64_t kBlockPositions = 8192;
// The number of rows that a kernel gets at once.
constexpr int64_t kRun = 1024;
// Shorter rows are prefetched early enough during their update. The processor itself prefetches the
// later bytes of long rows.
constexpr int64_t kFetchedDim = 32, kFetchedBytes = 256;
// For fewer elements of gradients and rows, other threads would start when the work is already done.
constexpr int64_t kElementsWorthThreads = 1 << 15;

int64_t PartsFor(int64_t positions, int64_t dim) {
  const int64_t of_part =
      std::clamp(kPartBytes / (std::max<int64_t>(dim, 1) * 4), kLeastPartPositions, kMostPartPositions);
  return static_cast<int64_t>(
      std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(positions / of_part, 1, kMaxParts))));
}

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

// Calls work(list, item) for each item of several lists, in parallel.
void ForEachItem(std::span<const int64_t> counts, int64_t grain, const ParallelFor& parallel,
                 const std::function<void(size_t list, int64_t item)>& work) {
  ForEachRange(counts, grain, parallel, [&](size_t list, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) work(list, i);
  });
}

// The distribution of a table's positions to parts, block by block; blocks may run in parallel. Positions without a row
// are left out.
class Partition {
 public:
  Partition(std::span<const uint32_t> numbers, int64_t dim)
      : numbers_(numbers),
        parts_(PartsFor(static_cast<int64_t>(numbers.size()), dim)),
        shift_(32 - std::countr_zero(static_cast<uint64_t>(parts_))),
        begins_(std::make_unique_for_overwrite<uint32_t[]>(blocks() * parts_)),
        positions_(std::make_unique_for_overwrite<uint32_t[]>(numbers.size())) {}

  int64_t blocks() const { return (static_cast<int64_t>(numbers_.size()) + kBlockPositions - 1) / kBlockPositions; }
  int64_t parts() const { return parts_; }

  void PartitionBlock(int64_t block) {
    // First the number of positions of each part, then the place of each part's next position.
    uint32_t* const begins = begins_.get() + block * parts_;
    std::fill_n(begins, parts_, 0);
    ForEachPosition(block, [&](int64_t, int64_t part) { ++begins[part]; });
    std::exclusive_scan(begins, begins + parts_, begins, static_cast<uint32_t>(block * kBlockPositions));
    ForEachPosition(block, [&](int64_t i, int64_t part) { positions_[begins[part]++] = static_cast<uint32_t>(i); });
  }

  // Returns the positions of a part in all blocks, ascending.
  std::vector<uint32_t> PositionsOf(int64_t part) const {
    // PartitionBlock has moved each of a block's places to the end of its part, where the next part begins.
    const auto begin_of = [&](int64_t block) {
      return part == 0 ? static_cast<uint32_t>(block * kBlockPositions) : begins_[block * parts_ + part - 1];
    };
    const auto end_of = [&](int64_t block) { return begins_[block * parts_ + part]; };
    size_t count = 0;
    for (int64_t block = 0; block < blocks(); ++block) count += end_of(block) - begin_of(block);
    std::vector<uint32_t> positions;
    positions.reserve(count);
    for (int64_t block = 0; block < blocks(); ++block) {
      positions.insert(positions.end(), positions_.get() + begin_of(block), positions_.get() + end_of(block));
    }
    return positions;
  }

 private:
  template <typename Work>
  void ForEachPosition(int64_t block, const Work& work) {
    const int64_t end = std::min(static_cast<int64_t>(numbers_.size()), (block + 1) * kBlockPositions);
    for (int64_t i = block * kBlockPositions; i < end; ++i) {
      if (numbers_[i] == kNoRow) continue;
      // With one part, the shift would be by all bits.
      work(i, parts_ == 1 ? 0 : HashRow(numbers_[i]) >> shift_);
    }
  }

  const std::span<const uint32_t> numbers_;
  const int64_t parts_;
  const int shift_;
  const std::unique_ptr<uint32_t[]> begins_;  // [blocks, parts]
  const std::unique_ptr<uint32_t[]> positions_;
};

// The distinct rows of a part, in order of appearance, each with its gradient: the gradient of its only position, or
// the sum of several.
class Distinct {
 public:
  Distinct(std::span<const uint32_t> positions, const TableUpdate& table)
      : table_(table),
        dim_(table.target.dim),
        slots_(std::bit_ceil(2 * positions.size() + 1), kFree),
        shift_(32 - std::countr_zero(slots_.size())) {
    const uint32_t* const numbers = table.numbers.data();
    numbers_.reserve(positions.size());
    gradients_.reserve(positions.size());
    sum_of_.reserve(positions.size());
    terms_.reserve(positions.size());
    sums_.reserve(positions.size() / 2 * static_cast<size_t>(dim_));  // a sum has at least two terms
    BlockTotals<float> totals(dim_);
    for (size_t i = 0; i < positions.size(); ++i) {
      // The positions of a part are spread over the batch.
      constexpr size_t kAhead = 12;
      // The processor itself prefetches the rest of long gradients.
      constexpr int64_t kPrefetchedBytes = 512;
      if (i + kAhead < positions.size()) {
        PrefetchForRead(table.gradients + positions[i + kAhead] * dim_, std::min(dim_ * 4, kPrefetchedBytes));
        PrefetchForRead(numbers + positions[i + kAhead]);
      }
      Add(numbers[positions[i]], table.gradients + positions[i] * dim_, totals);
    }
    totals.AddTo([this](uint32_t found) { return sums_.data() + sum_of_[found]; });
    for (size_t i = 0; i < sum_of_.size(); ++i) {
      if (sum_of_[i] != kNoSum) gradients_[i] = sums_.data() + sum_of_[i];
    }
  }

  const std::vector<uint32_t>& numbers() const { return numbers_; }
  const std::vector<const float*>& gradients() const { return gradients_; }

 private:
  void Add(uint32_t number, const float* gradient, BlockTotals<float>& totals) {
    const size_t mask = slots_.size() - 1;
    for (size_t i = HashAgain(number) >> shift_;; i = (i + 1) & mask) {
      if (slots_[i] == kFree) {
        if (dim_ >= kFetchedDim) FetchRow(number);
        numbers_.push_back(number);
        gradients_.push_back(gradient);
        sum_of_.push_back(kNoSum);
        terms_.push_back(1);
        slots_[i] = static_cast<uint32_t>(numbers_.size());
        return;
      }
      const uint32_t found = slots_[i] - 1;
      if (numbers_[found] != number) continue;
      if (sum_of_[found] == kNoSum) {
        sum_of_[found] = static_cast<int64_t>(sums_.size());
        sums_.insert(sums_.end(), gradients_[found], gradients_[found] + dim_);
      }
      float* const sum = sums_.data() + sum_of_[found];
      if (terms_[found] == kBlockTerms) {
        totals.Take(found, sum);
        std::copy_n(gradient, dim_, sum);
        terms_[found] = 1;
        return;
      }
      AddTo(sum, gradient, dim_);
      ++terms_[found];
      return;
    }
  }

  // Prefetches a row that will soon be updated, while further gradients are read.
  void FetchRow(uint32_t number) const {
    const UpdateTarget& target = table_.target;
    PrefetchForWrite(target.rows[number], std::min(target.rows.stride, kFetchedBytes));
    for (int s = 0; s < table_.rule.num_slots; ++s) {
      PrefetchForWrite(target.slots[s][number], std::min(dim_ * 4, kFetchedBytes));
    }
  }

  // HashRow is of no use here: within a part, its high bits are equal.
  static uint32_t HashAgain(uint32_t number) { return (number ^ number >> 15) * 0x85EBCA6Bu; }

  // Marks in the two arrays below, which are read for each position.
  static constexpr uint32_t kFree = 0;
  static constexpr int64_t kNoSum = -1;

  const TableUpdate& table_;
  const int64_t dim_;
  std::vector<uint32_t> slots_;  // 1 + the index of a row among the distinct ones, or kFree
  const int shift_;
  std::vector<uint32_t> numbers_;
  std::vector<const float*> gradients_;
  std::vector<int64_t> sum_of_;  // where the row's sum begins in sums_, or kNoSum for a row with one gradient
  std::vector<uint16_t> terms_;  // in the last block of the row's sum
  std::vector<float> sums_;
};

// Updates the rows of a part, each once, with the sum of its gradients.
void UpdatePart(const TableUpdate& table, std::span<const uint32_t> positions, const BeforeUpdate& before) {
  const Distinct distinct(positions, table);
  Run(table.target, table.rule, distinct.numbers().data(), distinct.gradients().data(),
      static_cast<int64_t>(distinct.numbers().size()), before);
}

// Updates rows [next, last) that `skip` does not hold, with a gradient of zero. zeros: [D].
void UpdateWithZeros(const UpdateTarget& target, const UpdateRule& rule, int64_t next, int64_t last,
                     const uint8_t* skip, const float* zeros, const BeforeUpdate& before) {
  std::array<uint32_t, kRun> rows;
  std::array<const float*, kRun> pointers;
  pointers.fill(zeros);
  while (next < last) {
    int64_t count = 0;
    for (; next < last && count < kRun; ++next) {
      if (skip[next] == 0) rows[count++] = static_cast<uint32_t>(next);
    }
    Run(target, rule, rows.data(), pointers.data(), count, before);
  }
}

// Distributes the positions of all tables to parts.
std::vector<std::unique_ptr<Partition>> PartitionPositions(std::span<const TableUpdate> tables,
                                                           const ParallelFor& parallel) {
  std::vector<std::unique_ptr<Partition>> partitions;
  std::vector<int64_t> blocks;
  for (const TableUpdate& table : tables) {
    partitions.push_back(std::make_unique<Partition>(table.numbers, table.target.dim));
    blocks.push_back(partitions.back()->blocks());
  }
  ForEachItem(blocks, 1, parallel, [&](size_t table, int64_t block) { partitions[table]->PartitionBlock(block); });
  return partitions;
}

// Updates the parts of all tables. before: called with a table's index and distinct rows.
void UpdateParts(std::span<const TableUpdate> tables, const ParallelFor& parallel,
                 const std::function<void(size_t table, std::span<const uint32_t> numbers)>& before) {
  const auto partitions = PartitionPositions(tables, parallel);
  std::vector<int64_t> parts;
  for (const auto& partition : partitions) parts.push_back(partition->parts());
  ForEachItem(parts, 1, parallel, [&](size_t table, int64_t part) {
    BeforeUpdate of_table;
    if (before) of_table = [&](std::span<const uint32_t> numbers) { before(table, numbers); };
    UpdatePart(tables[table], partitions[table]->PositionsOf(part), of_table);
  });
}

}  // namespace

void ApplyUpdate(const UpdateTarget& target, const UpdateRule& rule, std::span<const uint32_t> numbers,
                 const float* gradients, const ParallelFor& parallel, const BeforeUpdate& before) {
  const TableUpdate table{target, rule, numbers, gradients};
  if (!before) return UpdateParts({&table, 1}, parallel, nullptr);
  UpdateParts({&table, 1}, parallel, [&](size_t, std::span<const uint32_t> rows) { before(rows); });
}

void ApplyUpdates(std::span<const TableUpdate> tables, const ParallelFor& parallel) {
  int64_t elements = 0, widest = 0;
  std::vector<std::vector<uint8_t>> touched;  // [all_rows] of 0 or 1
  std::vector<int64_t> runs;
  for (const TableUpdate& table : tables) {
    elements += (static_cast<int64_t>(table.numbers.size()) + table.all_rows) * table.target.dim;
    widest = std::max(widest, table.target.dim);
    touched.emplace_back(table.all_rows, 0);
    runs.push_back((table.all_rows + kRun - 1) / kRun);
  }
  const ParallelFor& threads = elements < kElementsWorthThreads ? RunInline : parallel;
  UpdateParts(tables, threads, [&](size_t table, std::span<const uint32_t> numbers) {
    if (touched[table].empty()) return;
    for (const uint32_t number : numbers) touched[table][number] = 1;
  });
  const std::vector<float> zeros(widest, 0.0f);
  ForEachItem(runs, 1, threads, [&](size_t i, int64_t run) {
    UpdateWithZeros(tables[i].target, tables[i].rule, run * kRun, std::min(tables[i].all_rows, (run + 1) * kRun),
                    touched[i].data(), zeros.data(), nullptr);
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
  parallel(end, kRun, [&](int64_t next, int64_t last) {
    UpdateWithZeros(target, rule, next, last, skip.data(), zeros.data(), before);
  });
}

}  // namespace lockstep
