// Rows are handled in blocks of elements whose sums stay in registers. Forward, an example's sums stay there while its
// ids are visited; backward, a row's sums stay there while its examples are visited. The loops are compiled for each
// instruction set.
//
// PoolRows divides examples among the threads, and PoolGradients distinct rows: each thread looks for its own rows
// among all ids of a lookup.
#include "core/embedding/pooling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <type_traits>
#include <vector>

#include "core/base/block_totals.h"
#include "core/base/elements.h"
#include "core/base/prefetch.h"
#include "core/base/strings.h"

namespace lockstep {
namespace {

// The number of examples that a thread takes at once.
constexpr int64_t kExamples = 64;
// The number of parts into which the rows of a large lookup are divided for its gradient. A thread that takes
// neighbouring parts visits the ids once.
constexpr int64_t kParts = 16;
// For fewer elements, other threads would start when the work is already done.
constexpr int64_t kElementsWorthThreads = 1 << 15;
// The number of ids between the one that is handled and the one whose row is prefetched.
constexpr int64_t kAhead = 16;
// The processor itself prefetches the rest of longer rows.
constexpr int64_t kPrefetchedBytes = 256;

// Calls work with the type of the elements, which CheckPooling has accepted.
template <typename Work>
void WithElement(DType dtype, const Work& work) {
  switch (dtype) {
    case DType::kFloat64: return work(Plain<double>{});
    case DType::kFloat16: return work(Half{});
    case DType::kBFloat16: return work(BFloat{});
    default: return work(Plain<float>{});
  }
}

// The ids of one example.
template <typename Sum>
struct Example {
  [[gnu::always_inline]] Example(const Pooling& lookup, int64_t example)
      : begin(lookup.splits[example]),
        end(lookup.splits[example + 1]),
        weighted(lookup.weights.has_value()),
        weights(static_cast<const Sum*>(lookup.weights.value_or(nullptr))),
        denominator(DenominatorOf(lookup.combiner)) {}

  [[gnu::always_inline]] Sum DenominatorOf(Combiner combiner) const {
    if (combiner == Combiner::kSum) return 1;
    Sum sum = 0;
    if (!weighted) {
      sum = static_cast<Sum>(end - begin);
    } else {
      for (int64_t i = begin; i < end; ++i) sum += combiner == Combiner::kMean ? weights[i] : weights[i] * weights[i];
    }
    return combiner == Combiner::kMean ? sum : std::sqrt(sum);
  }

  const int64_t begin, end;
  const bool weighted;
  const Sum* const weights;
  const Sum denominator;
};

// Divides the values by a combiner's denominator.
template <int kCount, typename Sum>
[[gnu::always_inline]] inline void Divide(Sum denominator, Sum* values) {
  if (denominator == 1) return;
  const bool is_zero = denominator == 0;
  for (int d = 0; d < kCount; ++d) values[d] = is_zero ? 0 : values[d] / denominator;
}

// The sums of kCount neighbouring elements, in vectors that one instruction adds. The compiler would keep plain arrays
// of this length in memory, or add half of the rows element by element.
template <typename Element, int kCount, int kVectorBytes>
struct Sums {
  using Sum = typename Element::Value;
  static constexpr int kLanes = std::min<int>(kCount, kVectorBytes / sizeof(Sum));
  static constexpr int kVectors = kCount / kLanes;
  using Vector [[gnu::vector_size(kLanes * sizeof(Sum))]] = Sum;

  // Adds elements that are stored as `From`, with a weight if there are weights.
  template <typename From, bool kWeighted>
  [[gnu::always_inline]] void Add(const typename From::Stored* row, Sum weight) {
    for (int v = 0; v < kVectors; ++v) {
      Vector vector = {};
      if constexpr (std::is_same_v<Sum, typename From::Stored>) {
        std::memcpy(&vector, row + v * kLanes, sizeof(vector));
      } else {
        for (int l = 0; l < kLanes; ++l) vector[l] = From::Load(row[v * kLanes + l]);
      }
      vectors[v] += kWeighted ? weight * vector : vector;
    }
  }

  [[gnu::always_inline]] void Add(const Sums& other) {
    for (int v = 0; v < kVectors; ++v) vectors[v] += other.vectors[v];
  }

  [[gnu::always_inline]] void Write(Sum denominator, typename Element::Stored* out) const {
    Sum sums[kCount];
    std::memcpy(sums, vectors, sizeof(sums));
    Divide<kCount>(denominator, sums);
    for (int d = 0; d < kCount; ++d) out[d] = Element::Store(sums[d]);
  }

  Vector vectors[kVectors] = {};
};

// Adds the rows of an example's ids, kCount elements of each, and writes them divided by the denominator.
template <typename Element, int kCount, bool kWeighted, int kVectorBytes>
[[gnu::always_inline]] inline void PoolBlock(const Example<typename Element::Value>& example, const int32_t* places,
                                             int64_t dim, const typename Element::Stored* __restrict rows,
                                             typename Element::Stored* __restrict pooled) {
  Sums<Element, kCount, kVectorBytes> sums;
  for (int64_t i = example.begin; i < example.end; ++i) {
    sums.template Add<Element, kWeighted>(rows + places[i] * dim, kWeighted ? example.weights[i] : 1);
  }
  sums.Write(example.denominator, pooled);
}

// Adds the gradients of the examples that have a row's id, kCount elements of each, in blocks (block_totals.h), and
// writes the sum.
template <typename Element, int kCount, bool kWeighted, int kVectorBytes>
[[gnu::always_inline]] inline void AddBlock(std::span<const int32_t> examples, const typename Element::Value* weights,
                                            int64_t dim, const typename Element::Value* __restrict gradients,
                                            typename Element::Stored* __restrict out) {
  using Sum = typename Element::Value;
  Sums<Element, kCount, kVectorBytes> sums;
  for (size_t i = 0; i < examples.size();) {
    Sums<Element, kCount, kVectorBytes> block;
    for (const size_t end = std::min(i + size_t{kBlockTerms}, examples.size()); i < end; ++i) {
      block.template Add<Plain<Sum>, kWeighted>(gradients + examples[i] * dim, kWeighted ? weights[i] : 1);
    }
    sums.Add(block);
  }
  sums.Write(1, out);
}

// Calls block<kCount>(begin) for blocks that make up [0, dim).
template <typename Block>
[[gnu::always_inline]] inline void ForEachBlock(int64_t dim, const Block& block) {
  int64_t d = 0;
  for (; d + 64 <= dim; d += 64) block.template operator()<64>(d);
  for (; d + 32 <= dim; d += 32) block.template operator()<32>(d);
  for (; d + 16 <= dim; d += 16) block.template operator()<16>(d);
  for (; d + 8 <= dim; d += 8) block.template operator()<8>(d);
  for (; d + 4 <= dim; d += 4) block.template operator()<4>(d);
  for (; d < dim; ++d) block.template operator()<1>(d);
}

template <typename Element, bool kWeighted, int kVectorBytes>
[[gnu::always_inline]] inline void PoolExamples(const PoolRowsTask& task, int64_t begin, int64_t end) {
  using Stored = typename Element::Stored;
  const Pooling& lookup = task.lookup;
  const int64_t dim = lookup.dim, ids = lookup.ids();
  const int32_t* const places = lookup.places.data();
  const auto* const rows = static_cast<const Stored*>(task.rows);
  const int64_t fetched = std::min<int64_t>(dim * static_cast<int64_t>(sizeof(Stored)), kPrefetchedBytes);
  for (int64_t b = begin; b < end; ++b) {
    const Example<typename Element::Value> example(lookup, b);
    for (int64_t i = example.begin + kAhead; i < std::min(example.end + kAhead, ids); ++i) {
      PrefetchForRead(rows + places[i] * dim, fetched);
    }
    auto* const pooled = static_cast<Stored*>(task.pooled) + b * dim;
    ForEachBlock(
        dim, [&]<int kCount>(int64_t d) __attribute__((always_inline)) {
          PoolBlock<Element, kCount, kWeighted, kVectorBytes>(example, places, dim, rows + d, pooled + d);
        });
  }
}

// The examples of each row of [first, last), in the order of the ids: a counting sort.
template <typename Sum>
struct ExamplesByRow {
  ExamplesByRow(const Pooling& lookup, int64_t first, int64_t last) : ends(last - first + 1, 0) {
    const auto rows = static_cast<uint32_t>(last - first);
    const auto base = static_cast<uint32_t>(first);
    for (const int32_t place : lookup.places) {
      if (const uint32_t row = static_cast<uint32_t>(place) - base; row < rows) ++ends[row + 1];
    }
    std::partial_sum(ends.begin(), ends.end(), ends.begin());
    examples = std::make_unique_for_overwrite<int32_t[]>(ends.back());
    const bool weighted = lookup.weights.has_value();
    if (weighted) weights = std::make_unique_for_overwrite<Sum[]>(ends.back());
    const auto* const given = static_cast<const Sum*>(lookup.weights.value_or(nullptr));
    // So far, ends[r] is where row r begins. It advances with each of its examples.
    for (int64_t b = 0; b < lookup.examples(); ++b) {
      for (int64_t i = lookup.splits[b]; i < lookup.splits[b + 1]; ++i) {
        const uint32_t row = static_cast<uint32_t>(lookup.places[i]) - base;
        if (row >= rows) continue;
        const int32_t next = ends[row]++;
        examples[next] = static_cast<int32_t>(b);
        if (weighted) weights[next] = given[i];
      }
    }
  }

  std::vector<int32_t> ends;            // of each row's examples; row r counts from `first`
  std::unique_ptr<int32_t[]> examples;  // of row 0, of row 1, ...
  std::unique_ptr<Sum[]> weights;       // of the ids of `examples`; null without weights
};

// Each row's gradients are read where they are and added in registers. The gradients of a batch fit into a cache, which
// the rows need not, and sums that are read and written again for each id would wait for each other.
template <typename Element, bool kWeighted, int kVectorBytes>
[[gnu::always_inline]] inline void AddExamples(const PoolGradientsTask& task, int64_t first, int64_t last,
                                               const typename Element::Value* gradients) {
  const ExamplesByRow<typename Element::Value> by_row(task.lookup, first, last);
  const int64_t dim = task.lookup.dim;
  auto* out = static_cast<typename Element::Stored*>(task.row_gradients) + first * dim;
  int32_t begin = 0;
  for (int64_t row = 0; row < last - first; ++row, out += dim) {
    const int32_t* const examples = by_row.examples.get() + begin;
    const int32_t count = by_row.ends[row] - begin;
    ForEachBlock(
        dim, [&]<int kCount>(int64_t d) __attribute__((always_inline)) {
          AddBlock<Element, kCount, kWeighted, kVectorBytes>({examples, static_cast<size_t>(count)},
                                                             kWeighted ? by_row.weights.get() + begin : nullptr, dim,
                                                             gradients + d, out + d);
        });
    begin += count;
  }
}

// The loops above as functions of each instruction set.
template <typename Element>
struct Kernels {
  using Sum = typename Element::Value;
  using PoolFunction = void (*)(const PoolRowsTask& task, int64_t begin, int64_t end);
  using AddFunction = void (*)(const PoolGradientsTask& task, int64_t first, int64_t last, const Sum* gradients);

  template <bool kWeighted>
  static void PoolBaseline(const PoolRowsTask& task, int64_t begin, int64_t end) {
    PoolExamples<Element, kWeighted, 16>(task, begin, end);
  }
  template <bool kWeighted>
  LOCKSTEP_TARGET_AVX2 static void PoolAvx2(const PoolRowsTask& task, int64_t begin, int64_t end) {
    PoolExamples<Element, kWeighted, 32>(task, begin, end);
  }
  template <bool kWeighted>
  LOCKSTEP_TARGET_AVX512 static void PoolAvx512(const PoolRowsTask& task, int64_t begin, int64_t end) {
    PoolExamples<Element, kWeighted, 64>(task, begin, end);
  }
  template <bool kWeighted>
  static void AddBaseline(const PoolGradientsTask& task, int64_t first, int64_t last, const Sum* gradients) {
    AddExamples<Element, kWeighted, 16>(task, first, last, gradients);
  }
  template <bool kWeighted>
  LOCKSTEP_TARGET_AVX2 static void AddAvx2(const PoolGradientsTask& task, int64_t first, int64_t last,
                                           const Sum* gradients) {
    AddExamples<Element, kWeighted, 32>(task, first, last, gradients);
  }
  template <bool kWeighted>
  LOCKSTEP_TARGET_AVX512 static void AddAvx512(const PoolGradientsTask& task, int64_t first, int64_t last,
                                               const Sum* gradients) {
    AddExamples<Element, kWeighted, 64>(task, first, last, gradients);
  }

  // By weights and in the order of InstructionSet.
  static constexpr std::array<std::array<PoolFunction, kInstructionSetCount>, 2> kPool = {
      {{&PoolBaseline<false>, &PoolAvx2<false>, &PoolAvx512<false>},
       {&PoolBaseline<true>, &PoolAvx2<true>, &PoolAvx512<true>}}};
  static constexpr std::array<std::array<AddFunction, kInstructionSetCount>, 2> kAdd = {
      {{&AddBaseline<false>, &AddAvx2<false>, &AddAvx512<false>},
       {&AddBaseline<true>, &AddAvx2<true>, &AddAvx512<true>}}};
};

// Returns whether the gradients of examples are added as they are: without a division, and in the type of sums.
bool AreAddedAsGiven(const Pooling& lookup) {
  const bool is_type_of_sums = lookup.dtype == DType::kFloat32 || lookup.dtype == DType::kFloat64;
  return is_type_of_sums && lookup.combiner == Combiner::kSum;
}

// Writes the gradients of examples [begin, end) divided by their denominators, as the type of sums.
template <typename Element>
void DivideExamples(const PoolGradientsTask& task, int64_t begin, int64_t end, typename Element::Value* divided) {
  const int64_t dim = task.lookup.dim;
  const auto* const given = static_cast<const typename Element::Stored*>(task.gradient);
  for (int64_t b = begin; b < end; ++b) {
    const Example<typename Element::Value> example(task.lookup, b);
    for (int64_t i = b * dim; i < (b + 1) * dim; ++i) {
      divided[i] = Element::Load(given[i]);
      Divide<1>(example.denominator, &divided[i]);
    }
  }
}

// Returns the threads for some lookups: their caller's, or none for little work.
template <typename Task>
ParallelFor ThreadsFor(std::span<const Task> tasks, const ParallelFor& parallel) {
  int64_t elements = 0;
  for (const Task& task : tasks) elements += task.lookup.ids() * task.lookup.dim;
  return elements < kElementsWorthThreads ? RunInline : parallel;
}

// Calls work(number of the task, begin, end) for ranges that make up the examples of all tasks, in parallel.
template <typename Task, typename Work>
void ForEachExample(std::span<const Task> tasks, const ParallelFor& parallel, const Work& work) {
  std::vector<int64_t> items;
  for (const Task& task : tasks) items.push_back((task.lookup.examples() + kExamples - 1) / kExamples);
  ForEachRange(items, 1, ThreadsFor(tasks, parallel), [&](size_t t, int64_t begin, int64_t end) {
    work(t, begin * kExamples, std::min(end * kExamples, tasks[t].lookup.examples()));
  });
}

}  // namespace

std::optional<Combiner> FindCombiner(std::string_view name) {
  if (name == "sum") return Combiner::kSum;
  if (name == "mean") return Combiner::kMean;
  if (name == "sqrtn") return Combiner::kSqrtN;
  return std::nullopt;
}

Status CheckSplits(std::span<const int64_t> splits, int64_t ids) {
  if (splits.empty()) return InvalidArgument("got no splits, wanted [examples + 1]");
  if (splits.front() != 0 || splits.back() != ids) {
    return InvalidArgument(StrCat("splits begin with ", splits.front(), " and end with ", splits.back(),
                                  ", wanted 0 and the number of ids, ", ids));
  }
  const auto falls = std::is_sorted_until(splits.begin(), splits.end());
  if (falls == splits.end()) return OkStatus();
  return InvalidArgument(
      StrCat("splits[", falls - splits.begin(), "] is ", *falls, " after ", *(falls - 1), ": splits must not fall"));
}

Status CheckPooling(const Pooling& lookup) {
  if (!IsFloatingPoint(lookup.dtype)) {
    return InvalidArgument(StrCat("rows are ", DTypeName(lookup.dtype), ", wanted floating point"));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckSplits(lookup.splits, lookup.ids()));
  const auto rows =
      static_cast<uint32_t>(std::clamp<int64_t>(lookup.rows, 0, int64_t{std::numeric_limits<int32_t>::max()} + 1));
  // The highest bit of place | rows - 1 - place tells whether a place is out of range. A comparison for each id, which
  // the compiler does not vectorise, would take longer than to combine the rows.
  uint32_t bits = 0;
  for (const int32_t place : lookup.places)
    bits |= static_cast<uint32_t>(place) | (rows - 1 - static_cast<uint32_t>(place));
  if (bits >> 31 == 0) return OkStatus();
  const auto wrong = std::find_if(lookup.places.begin(), lookup.places.end(),
                                  [rows](int32_t place) { return static_cast<uint32_t>(place) >= rows; });
  return InvalidArgument(
      StrCat("places[", wrong - lookup.places.begin(), "] is ", *wrong, ", wanted one of ", lookup.rows, " rows"));
}

Status SplitsOf(const int64_t* example_of, int64_t stride, int64_t ids, std::span<int64_t> splits) {
  const auto examples = static_cast<int64_t>(splits.size()) - 1;
  int64_t next = 0;  // the first split that is not written
  for (int64_t i = 0; i < ids; ++i) {
    const int64_t example = example_of[i * stride];
    if (example < 0 || example >= examples) {
      return InvalidArgument(StrCat("id ", i, " belongs to example ", example, ", wanted one in [0, ", examples, ")"));
    }
    if (example + 1 < next) {
      return InvalidArgument(StrCat("id ", i, " belongs to example ", example, ", but the id before it to example ",
                                    next - 1, ": ids have to be sorted by example"));
    }
    while (next <= example) splits[next++] = i;
  }
  std::fill(splits.begin() + next, splits.end(), ids);
  return OkStatus();
}

void PoolRows(std::span<const PoolRowsTask> tasks, const ParallelFor& parallel, InstructionSet set) {
  ForEachExample(tasks, parallel, [&](size_t t, int64_t begin, int64_t end) {
    WithElement(tasks[t].lookup.dtype, [&]<typename Element>(Element) {
      Kernels<Element>::kPool[tasks[t].lookup.weights.has_value()][static_cast<size_t>(set)](tasks[t], begin, end);
    });
  });
}

void PoolGradients(std::span<const PoolGradientsTask> tasks, const ParallelFor& parallel, InstructionSet set) {
  // Each thread reads the gradients of all examples, so they are divided before.
  std::vector<std::unique_ptr<char[]>> divided(tasks.size());
  bool divides = false;
  for (size_t t = 0; t < tasks.size(); ++t) {
    const Pooling& lookup = tasks[t].lookup;
    if (AreAddedAsGiven(lookup)) continue;
    const size_t sum_bytes = lookup.dtype == DType::kFloat64 ? sizeof(double) : sizeof(float);
    divided[t] = std::make_unique_for_overwrite<char[]>(lookup.examples() * lookup.dim * sum_bytes);
    divides = true;
  }
  if (divides) {
    ForEachExample(tasks, parallel, [&](size_t t, int64_t begin, int64_t end) {
      if (divided[t] == nullptr) return;
      WithElement(tasks[t].lookup.dtype, [&]<typename Element>(Element) {
        void* const out = divided[t].get();
        DivideExamples<Element>(tasks[t], begin, end, static_cast<typename Element::Value*>(out));
      });
    });
  }
  std::vector<int64_t> parts;
  for (const PoolGradientsTask& task : tasks) parts.push_back(std::min(task.lookup.rows, kParts));
  ForEachRange(parts, 1, ThreadsFor(tasks, parallel), [&](size_t t, int64_t begin, int64_t end) {
    const Pooling& lookup = tasks[t].lookup;
    const void* const gradients = divided[t] != nullptr ? divided[t].get() : tasks[t].gradient;
    WithElement(lookup.dtype, [&]<typename Element>(Element) {
      Kernels<Element>::kAdd[lookup.weights.has_value()][static_cast<size_t>(set)](
          tasks[t], lookup.rows * begin / parts[t], lookup.rows * end / parts[t],
          static_cast<const typename Element::Value*>(gradients));
    });
  });
}

}  // namespace lockstep
