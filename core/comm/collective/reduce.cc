#include "core/comm/collective/reduce.h"

#include <array>
#include <type_traits>

#include "core/comm/collective/operations.h"

// One loop serves all types, operations and instruction sets. It is forced inline into functions that differ in their
// target attribute, and the compiler vectorises each copy for its target. The loop uses a small block of accumulators
// on the stack. They overlap with nothing, so the loop can be vectorised although `out` may be one of the sources.
//
// The loops' order fixes the order of the operations on one element: source by source, never in a tree. So each source
// depends on the one before. This does not matter, because the elements of a block are independent and memory is the
// limit.
//
// A trap for changes: the loops may call only functions that are forced inline. A function that the compiler leaves out
// of line would be compiled once, for the baseline, and shared by all three targets.

namespace lockstep {
namespace {

// Reduces elements [begin, begin + count) through the block `values`. The first two sources are read together, which
// saves a pass over the block. All sources of a block are read before its result is written, so `out` may be any of
// them.
template <typename E, typename Op, bool kMean>
[[gnu::always_inline]] inline void ReduceBlock(const void* const* sources, int num_sources, int64_t begin,
                                               int64_t count, void* out, typename E::Value* values) {
  using Stored = typename E::Stored;
  const Stored* first = static_cast<const Stored*>(sources[0]) + begin;
  if (num_sources == 1) {
    for (int64_t i = 0; i < count; ++i) values[i] = E::Load(first[i]);
  } else {
    const Stored* second = static_cast<const Stored*>(sources[1]) + begin;
    for (int64_t i = 0; i < count; ++i) values[i] = Op::Apply(E::Load(first[i]), E::Load(second[i]));
  }
  for (int s = 2; s < num_sources; ++s) {
    const Stored* next = static_cast<const Stored*>(sources[s]) + begin;
    for (int64_t i = 0; i < count; ++i) values[i] = Op::Apply(values[i], E::Load(next[i]));
  }
  if constexpr (kMean) {
    const auto divisor = static_cast<typename E::Value>(num_sources);
    for (int64_t i = 0; i < count; ++i) values[i] /= divisor;
  }
  Stored* result = static_cast<Stored*>(out) + begin;
  for (int64_t i = 0; i < count; ++i) result[i] = E::Store(values[i]);
}

// Reduces all elements, block by block. Whole blocks have a constant length, so the compiler can unroll; the rest comes
// last.
template <typename E, typename Op, bool kMean>
[[gnu::always_inline]] inline void ReduceAll(const void* const* sources, int num_sources, int64_t count, void* out) {
  // Small enough for the first-level cache, large enough to keep the loops' overhead out of sight.
  constexpr int64_t kBlock = 256;
  alignas(64) typename E::Value values[kBlock];
  int64_t done = 0;
  for (; done + kBlock <= count; done += kBlock) {
    ReduceBlock<E, Op, kMean>(sources, num_sources, done, kBlock, out, values);
  }
  if (done < count) ReduceBlock<E, Op, kMean>(sources, num_sources, done, count - done, out, values);
}

// The three copies of the loop, each for the instructions that its attribute allows.
template <typename E, typename Op, bool kMean>
void ReduceBaseline(const void* const* sources, int num_sources, int64_t count, void* out) {
  ReduceAll<E, Op, kMean>(sources, num_sources, count, out);
}

template <typename E, typename Op, bool kMean>
LOCKSTEP_TARGET_AVX2 void ReduceAvx2(const void* const* sources, int num_sources, int64_t count, void* out) {
  ReduceAll<E, Op, kMean>(sources, num_sources, count, out);
}

template <typename E, typename Op, bool kMean>
LOCKSTEP_TARGET_AVX512 void ReduceAvx512(const void* const* sources, int num_sources, int64_t count, void* out) {
  ReduceAll<E, Op, kMean>(sources, num_sources, count, out);
}

// The same reduction for each instruction set, in the order of the enumerators.
using Variants = std::array<ReduceFunction, kInstructionSetCount>;

template <typename E, typename Op, bool kMean = false>
constexpr Variants MakeVariants() {
  return {&ReduceBaseline<E, Op, kMean>, &ReduceAvx2<E, Op, kMean>, &ReduceAvx512<E, Op, kMean>};
}

// The reductions of one type, in the order of ReduceOp.
using Operations = std::array<Variants, 5>;

template <typename E>
constexpr Operations MakeOperations() {
  using Arithmetic = typename ArithmeticOf<E>::Type;
  Variants mean = {};
  if constexpr (std::is_floating_point_v<typename E::Value>) mean = MakeVariants<E, Sum, true>();
  return {MakeVariants<Arithmetic, Sum>(), mean, MakeVariants<E, Min>(), MakeVariants<E, Max>(),
          MakeVariants<Arithmetic, Product>()};
}

// In the order of DType.
constexpr std::array<Operations, kDTypeCount> kReductions = {
    MakeOperations<Plain<float>>(),   MakeOperations<Plain<double>>(),   MakeOperations<Half>(),
    MakeOperations<BFloat>(),         MakeOperations<Plain<int8_t>>(),   MakeOperations<Plain<int16_t>>(),
    MakeOperations<Plain<int32_t>>(), MakeOperations<Plain<int64_t>>(),  MakeOperations<Plain<uint8_t>>(),
    MakeOperations<Bool>(),           MakeOperations<Plain<uint16_t>>(), MakeOperations<Plain<uint32_t>>(),
    MakeOperations<Plain<uint64_t>>()};

}  // namespace

ReduceFunction FindReduce(ReduceOp op, DType dtype, InstructionSet set) {
  return kReductions[static_cast<int>(dtype)][static_cast<int>(op)][static_cast<int>(set)];
}

}  // namespace lockstep
