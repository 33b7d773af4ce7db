// Rows are handled in blocks of elements whose sums stay in registers while the ids of an example are visited. A block
// is a loop of constant length, which the compiler vectorises for each instruction set.
//
// PoolRows divides examples among the threads. PoolGradients divides distinct rows, because several examples add to one
// row: each thread visits all ids of a lookup and adds only to its own rows.
#include "core/embedding/pooling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

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
        weights(static_cast<const Sum*>(lookup.weights)),
        denominator(DenominatorOf(lookup.combiner)) {}

  [[gnu::always_inline]] Sum DenominatorOf(Combiner combiner) const {
    if (combiner == Combiner::kSum) return 1;
    Sum sum = 0;
    if (weights == nullptr) {
      sum = static_cast<Sum>(end - begin);
    } else {
      for (int64_t i = begin; i < end; ++i) sum += combiner == Combiner::kMean ? weights[i] : weights[i] * weights[i];
    }
    return combiner == Combiner::kMean ? sum : std::sqrt(sum);
  }

  const int64_t begin, end;
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

// Adds the rows of an example's ids, kCount elements of each, and writes them divided by the denominator.
template <typename Element, int kCount, bool kWeighted>
[[gnu::always_inline]] inline void PoolBlock(const Example<typename Element::Value>& example, const int32_t* places,
                                             int64_t dim, const typename Element::Stored* __restrict rows,
                                             typename Element::Stored* __restrict pooled) {
  using Sum = typename Element::Value;
  Sum sums[kCount] = {};
  for (int64_t i = example.begin; i < example.end; ++i) {
    const typename Element::Stored* const row = rows + places[i] * dim;
    const Sum weight = kWeighted ? example.weights[i] : 1;
    for (int d = 0; d < kCount; ++d) sums[d] += kWeighted ? weight * Element::Load(row[d]) : Element::Load(row[d]);
  }
  Divide<kCount>(example.denominator, sums);
  for (int d = 0; d < kCount; ++d) pooled[d] = Element::Store(sums[d]);
}

// Adds the gradient of an example, kCount elements, to the sums of its ids' rows that are in [first, last). The sums
// begin with row `first`.
template <typename Element, int kCount, bool kWeighted>
[[gnu::always_inline]] inline void AddBlock(const Example<typename Element::Value>& example, const int32_t* places,
                                            int64_t dim, int64_t first, int64_t last,
                                            const typename Element::Stored* __restrict gradient,
                                            typename Element::Value* __restrict sums) {
  using Sum = typename Element::Value;
  Sum own[kCount];
  for (int d = 0; d < kCount; ++d) own[d] = Element::Load(gradient[d]);
  Divide<kCount>(example.denominator, own);
  for (int64_t i = example.begin; i < example.end; ++i) {
    const int64_t place = places[i];
    if (place < first || place >= last) continue;
    Sum* const sum = sums + (place - first) * dim;
    const Sum weight = kWeighted ? example.weights[i] : 1;
    for (int d = 0; d < kCount; ++d) sum[d] += kWeighted ? weight * own[d] : own[d];
  }
}

// Calls block<kCount>(begin) for blocks that make up [0, dim).
template <typename Block>
[[gnu::always_inline]] inline void ForEachBlock(int64_t dim, const Block& block) {
  int64_t d = 0;
  for (; d + 32 <= dim; d += 32) block.template operator()<32>(d);
  for (; d + 16 <= dim; d += 16) block.template operator()<16>(d);
  for (; d + 8 <= dim; d += 8) block.template operator()<8>(d);
  for (; d + 4 <= dim; d += 4) block.template operator()<4>(d);
  for (; d < dim; ++d) block.template operator()<1>(d);
}

template <typename Element, bool kWeighted>
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
          PoolBlock<Element, kCount, kWeighted>(example, places, dim, rows + d, pooled + d);
        });
  }
}

template <typename Element, bool kWeighted>
[[gnu::always_inline]] inline void AddExamples(const PoolGradientsTask& task, int64_t first, int64_t last,
                                               typename Element::Value* sums) {
  using Sum = typename Element::Value;
  const Pooling& lookup = task.lookup;
  const int64_t dim = lookup.dim, ids = lookup.ids();
  const int32_t* const places = lookup.places.data();
  const auto* const gradients = static_cast<const typename Element::Stored*>(task.gradient);
  const int64_t fetched = std::min<int64_t>(dim * static_cast<int64_t>(sizeof(Sum)), kPrefetchedBytes);
  for (int64_t b = 0; b < lookup.examples(); ++b) {
    const Example<Sum> example(lookup, b);
    for (int64_t i = example.begin + kAhead; i < std::min(example.end + kAhead, ids); ++i) {
      if (places[i] >= first && places[i] < last) PrefetchForWrite(sums + (places[i] - first) * dim, fetched);
    }
    ForEachBlock(
        dim, [&]<int kCount>(int64_t d) __attribute__((always_inline)) {
          AddBlock<Element, kCount, kWeighted>(example, places, dim, first, last, gradients + b * dim + d, sums + d);
        });
  }
}

// The loops above as functions of each instruction set.
template <typename Element>
struct Kernels {
  using Sum = typename Element::Value;
  using PoolFunction = void (*)(const PoolRowsTask& task, int64_t begin, int64_t end);
  using AddFunction = void (*)(const PoolGradientsTask& task, int64_t first, int64_t last, Sum* sums);

  template <bool kWeighted>
  static void PoolBaseline(const PoolRowsTask& task, int64_t begin, int64_t end) {
    PoolExamples<Element, kWeighted>(task, begin, end);
  }
  template <bool kWeighted>
  LOCKSTEP_TARGET_AVX2 static void PoolAvx2(const PoolRowsTask& task, int64_t begin, int64_t end) {
    PoolExamples<Element, kWeighted>(task, begin, end);
  }
  template <bool kWeighted>
  LOCKSTEP_TARGET_AVX512 static void PoolAvx512(const PoolRowsTask& task, int64_t begin, int64_t end) {
    PoolExamples<Element, kWeighted>(task, begin, end);
  }
  template <bool kWeighted>
  static void AddBaseline(const PoolGradientsTask& task, int64_t first, int64_t last, Sum* sums) {
    AddExamples<Element, kWeighted>(task, first, last, sums);
  }
  template <bool kWeighted>
  LOCKSTEP_TARGET_AVX2 static void AddAvx2(const PoolGradientsTask& task, int64_t first, int64_t last, Sum* sums) {
    AddExamples<Element, kWeighted>(task, first, last, sums);
  }
  template <bool kWeighted>
  LOCKSTEP_TARGET_AVX512 static void AddAvx512(const PoolGradientsTask& task, int64_t first, int64_t last, Sum* sums) {
    AddExamples<Element, kWeighted>(task, first, last, sums);
  }

  // By weights and in the order of InstructionSet.
  static constexpr std::array<std::array<PoolFunction, kInstructionSetCount>, 2> kPool = {
      {{&PoolBaseline<false>, &PoolAvx2<false>, &PoolAvx512<false>},
       {&PoolBaseline<true>, &PoolAvx2<true>, &PoolAvx512<true>}}};
  static constexpr std::array<std::array<AddFunction, kInstructionSetCount>, 2> kAdd = {
      {{&AddBaseline<false>, &AddAvx2<false>, &AddAvx512<false>},
       {&AddBaseline<true>, &AddAvx2<true>, &AddAvx512<true>}}};
};

// Writes the sums of rows [first, last) of a lookup.
template <typename Element>
void SumRows(const PoolGradientsTask& task, int64_t first, int64_t last, InstructionSet set) {
  using Sum = typename Element::Value;
  using Stored = typename Element::Stored;
  const int64_t begin = first * task.lookup.dim, count = (last - first) * task.lookup.dim;
  const auto add = Kernels<Element>::kAdd[task.lookup.weights != nullptr][static_cast<size_t>(set)];
  auto* const out = static_cast<Stored*>(task.row_gradients);
  if constexpr (std::is_same_v<Sum, Stored>) {
    std::fill_n(out + begin, count, Stored{0});
    add(task, first, last, out + begin);
  } else {
    // The sums of 16-bit rows are rounded once.
    const auto sums = std::make_unique<Sum[]>(count);
    add(task, first, last, sums.get());
    for (int64_t i = 0; i < count; ++i) out[begin + i] = Element::Store(sums[i]);
  }
}

// Returns the threads for some lookups: their caller's, or none for little work.
template <typename Task>
ParallelFor ThreadsFor(std::span<const Task> tasks, const ParallelFor& parallel) {
  int64_t elements = 0;
  for (const Task& task : tasks) elements += task.lookup.ids() * task.lookup.dim;
  return elements < kElementsWorthThreads ? RunInline : parallel;
}

// Calls work(task, begin, end) for ranges of examples that make up those of all tasks, in parallel.
template <typename Task, typename Work>
void ForEachExample(std::span<const Task> tasks, const ParallelFor& parallel, const Work& work) {
  std::vector<int64_t> items;
  for (const Task& task : tasks) items.push_back((task.lookup.examples() + kExamples - 1) / kExamples);
  ForEachRange(items, 1, ThreadsFor(tasks, parallel), [&](size_t t, int64_t begin, int64_t end) {
    work(tasks[t], begin * kExamples, std::min(end * kExamples, tasks[t].lookup.examples()));
  });
}

}  // namespace

std::optional<Combiner> FindCombiner(std::string_view name) {
  if (name == "sum") return Combiner::kSum;
  if (name == "mean") return Combiner::kMean;
  if (name == "sqrtn") return Combiner::kSqrtN;
  return std::nullopt;
}

Status CheckPooling(const Pooling& lookup) {
  if (!IsFloatingPoint(lookup.dtype)) {
    return InvalidArgument(StrCat("rows are ", DTypeName(lookup.dtype), "; they have to be floating point"));
  }
  if (lookup.splits.empty() || lookup.splits.front() != 0 || lookup.splits.back() != lookup.ids()) {
    return InvalidArgument(lookup.splits.empty()
                               ? StrCat("got no splits, wanted [examples + 1]")
                               : StrCat("splits begin with ", lookup.splits.front(), " and end with ",
                                        lookup.splits.back(), ", wanted 0 and the number of ids, ", lookup.ids()));
  }
  const auto falls = std::is_sorted_until(lookup.splits.begin(), lookup.splits.end());
  if (falls != lookup.splits.end()) {
    return InvalidArgument(StrCat("splits[", falls - lookup.splits.begin(), "] is ", *falls, " after ", *(falls - 1),
                                  ": splits must not fall"));
  }
  // Without a branch, so that the check is vectorised: it covers every id.
  const auto rows =
      static_cast<uint32_t>(std::clamp<int64_t>(lookup.rows, 0, int64_t{std::numeric_limits<int32_t>::max()} + 1));
  bool all_known = true;
  for (const int32_t place : lookup.places) all_known &= static_cast<uint32_t>(place) < rows;
  if (all_known) return OkStatus();
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
  ForEachExample(tasks, parallel, [set](const PoolRowsTask& task, int64_t begin, int64_t end) {
    WithElement(task.lookup.dtype, [&]<typename Element>(Element) {
      Kernels<Element>::kPool[task.lookup.weights != nullptr][static_cast<size_t>(set)](task, begin, end);
    });
  });
}

void PoolGradients(std::span<const PoolGradientsTask> tasks, const ParallelFor& parallel, InstructionSet set) {
  std::vector<int64_t> parts;
  for (const PoolGradientsTask& task : tasks) parts.push_back(std::min(task.lookup.rows, kParts));
  ForEachRange(parts, 1, ThreadsFor(tasks, parallel), [&](size_t t, int64_t begin, int64_t end) {
    const int64_t rows = tasks[t].lookup.rows;
    WithElement(tasks[t].lookup.dtype, [&]<typename Element>(Element) {
      SumRows<Element>(tasks[t], rows * begin / parts[t], rows * end / parts[t], set);
    });
  });
}

}  // namespace lockstep
