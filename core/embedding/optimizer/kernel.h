#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "core/base/float16.h"
#include "core/base/hash.h"
#include "core/base/prefetch.h"
#include "core/base/strings.h"
#include "core/embedding/optimizer/update.h"

// Makes an optimizer's kernels from its formula for one element: for each row type and instruction set, a loop over
// rows that the compiler vectorises over the elements. Only the .cc files of the optimizers include it.
//
// A formula is a type with
// ```cpp
// static constexpr int kSlots;
// explicit Formula(const float* parameters);
// float Next(float weight, float gradient, float* slots) const;    // changes slots[kSlots]; returns the new weight
// ```
// Its members are forced inline (core/base/instruction_set.h says why).
namespace lockstep::kernel {

// A permutation of the 32-bit numbers (Wellons' "lowbias32", public domain), which gives random bits for an element.
[[gnu::always_inline]] inline uint32_t Scramble(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7FEB352D;
  x ^= x >> 15;
  x *= 0x846CA68B;
  return x ^ x >> 16;
}

// The storage of a row's elements: Load returns a float, Store rounds with random bits.
struct Float32Row {
  using Stored = float;
  [[gnu::always_inline]] static float Load(float stored) { return stored; }
  [[gnu::always_inline]] static float Store(float value, uint32_t random) { return value; }
};

struct BFloat16Row {
  using Stored = uint16_t;
  [[gnu::always_inline]] static float Load(uint16_t stored) { return BFloat16ToFloat(stored); }
  // Takes the upper half, one unit up with the probability of the rest. Inf and NaN are not rounded stochastically.
  [[gnu::always_inline]] static uint16_t Store(float value, uint32_t random) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const bool finite = (bits & 0x7F800000) != 0x7F800000;
    return static_cast<uint16_t>(finite ? (bits + (random & 0xFFFF)) >> 16 : FloatToBFloat16(value));
  }
};

struct Float16Row {
  using Stored = uint16_t;
  [[gnu::always_inline]] static float Load(uint16_t stored) { return Float16ToFloat(stored); }
  [[gnu::always_inline]] static uint16_t Store(float value, uint32_t random) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7FFFFFFF;
    // Normal results: 13 bits are cut off after a random number of 13 bits is added.
    const uint32_t normal = (magnitude + (random & 0x1FFF) - (uint32_t{112} << 23)) >> 13;
    // Subnormal results, below 2^-14: whole units of 2^-24, and one more with the probability of the fraction.
    const float units = std::bit_cast<float>(std::min(magnitude, 0x38800000u)) * 0x1p24f;
    const auto whole = static_cast<int32_t>(units);
    const float fraction = units - static_cast<float>(whole);
    const bool up = static_cast<float>(static_cast<int32_t>(random >> 8)) * 0x1p-24f < fraction;
    const uint32_t subnormal = static_cast<uint32_t>(whole) + (up ? 1 : 0);
    const uint32_t rounded = magnitude < 0x38800000 ? subnormal : normal;
    // The largest number cannot be rounded up.
    const uint32_t limited = std::min(rounded, 0x7BFFu);
    return static_cast<uint16_t>(magnitude >= 0x477FF000 ? FloatToFloat16(value) : sign | limited);
  }
};

// The number of elements that are handled together: it is constant, so the compiler unrolls.
inline constexpr int64_t kBlock = 16;

// Updates elements [begin, begin + count) of one row, at most kBlock.
template <typename Formula, typename Row>
[[gnu::always_inline]] inline void UpdateElements(const Formula& formula, char* row,
                                                  const std::array<float*, kMaxSlots>& slots, const float* gradient,
                                                  int64_t begin, int64_t count, uint64_t random) {
  constexpr int kSlots = Formula::kSlots;
  auto* __restrict weights = reinterpret_cast<typename Row::Stored*>(row) + begin;
  const float* __restrict gradients = gradient + begin;
  float* __restrict slot0 = slots[0] + begin;
  float* __restrict slot1 = slots[1] + begin;
  float* __restrict slot2 = slots[2] + begin;
  // Three loops, so that conversions do not keep the formula from being vectorised.
  float values[kBlock];
  for (int64_t i = 0; i < count; ++i) values[i] = Row::Load(weights[i]);
  for (int64_t i = 0; i < count; ++i) {
    float state[kMaxSlots];
    if constexpr (kSlots > 0) state[0] = slot0[i];
    if constexpr (kSlots > 1) state[1] = slot1[i];
    if constexpr (kSlots > 2) state[2] = slot2[i];
    values[i] = formula.Next(values[i], gradients[i], state);
    if constexpr (kSlots > 0) slot0[i] = state[0];
    if constexpr (kSlots > 1) slot1[i] = state[1];
    if constexpr (kSlots > 2) slot2[i] = state[2];
  }
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = Scramble(static_cast<uint32_t>(random) + static_cast<uint32_t>(begin + i) * 0x9E3779B9u) ^
                          static_cast<uint32_t>(random >> 32);
    weights[i] = Row::Store(values[i], bits);
  }
}

// Updates all rows of a run. Rows lie anywhere in memory, so the next rows are prefetched. The longer rows are, the
// fewer are prefetched, because only a limited number of cache lines can be loaded at once.
template <typename Formula, typename Row>
[[gnu::always_inline]] inline void UpdateRows(const RowUpdates& updates, const float* parameters) {
  const Formula formula(parameters);
  const int64_t dim = updates.dim;
  const int64_t row_bytes = dim * static_cast<int64_t>(sizeof(typename Row::Stored)), slot_bytes = dim * 4;
  const int64_t lines = 1 + (row_bytes + Formula::kSlots * slot_bytes) / 64;
  const int64_t ahead = std::clamp<int64_t>(48 / lines, 2, 16);
  for (int64_t i = 0; i < updates.count; ++i) {
    if (i + ahead < updates.count) {
      const uint32_t next = updates.numbers[i + ahead];
      PrefetchForWrite(updates.rows[next], row_bytes);
      for (int s = 0; s < Formula::kSlots; ++s) PrefetchForWrite(updates.slots[s][next], slot_bytes);
      PrefetchForRead(updates.gradients[i + ahead]);
    }
    const uint32_t number = updates.numbers[i];
    std::array<float*, kMaxSlots> slots = {};
    for (int s = 0; s < Formula::kSlots; ++s) slots[s] = reinterpret_cast<float*>(updates.slots[s][number]);
    uint64_t random = 0;
    if (sizeof(typename Row::Stored) < sizeof(float)) {
      const int64_t key = updates.keys == nullptr ? number : *reinterpret_cast<const int64_t*>((*updates.keys)[number]);
      random = MixBits(updates.rounding ^ MixBits(static_cast<uint64_t>(key)));
    }
    int64_t begin = 0;
    for (; begin + kBlock <= dim; begin += kBlock) {
      UpdateElements<Formula, Row>(formula, updates.rows[number], slots, updates.gradients[i], begin, kBlock, random);
    }
    if (begin < dim) {
      UpdateElements<Formula, Row>(formula, updates.rows[number], slots, updates.gradients[i], begin, dim - begin,
                                   random);
    }
  }
}

template <typename Formula, typename Row>
void UpdateBaseline(const RowUpdates& updates, const float* parameters) {
  UpdateRows<Formula, Row>(updates, parameters);
}

template <typename Formula, typename Row>
LOCKSTEP_TARGET_AVX2 void UpdateAvx2(const RowUpdates& updates, const float* parameters) {
  UpdateRows<Formula, Row>(updates, parameters);
}

template <typename Formula, typename Row>
LOCKSTEP_TARGET_AVX512 void UpdateAvx512(const RowUpdates& updates, const float* parameters) {
  UpdateRows<Formula, Row>(updates, parameters);
}

// Returns the kernel for a row type and instruction set. INVALID_ARGUMENT for other types than the three.
template <typename Formula>
Result<UpdateRule> MakeRule(DType row_type, InstructionSet set, const std::array<float, kMaxParameters>& parameters) {
  using Variants = std::array<UpdateFunction, kInstructionSetCount>;  // in the order of InstructionSet
  static constexpr Variants kFloat32 = {&UpdateBaseline<Formula, Float32Row>, &UpdateAvx2<Formula, Float32Row>,
                                        &UpdateAvx512<Formula, Float32Row>};
  static constexpr Variants kFloat16 = {&UpdateBaseline<Formula, Float16Row>, &UpdateAvx2<Formula, Float16Row>,
                                        &UpdateAvx512<Formula, Float16Row>};
  static constexpr Variants kBFloat16 = {&UpdateBaseline<Formula, BFloat16Row>, &UpdateAvx2<Formula, BFloat16Row>,
                                         &UpdateAvx512<Formula, BFloat16Row>};
  const auto index = static_cast<size_t>(set);
  switch (row_type) {
    case DType::kFloat32: return UpdateRule{kFloat32[index], Formula::kSlots, row_type, parameters};
    case DType::kFloat16: return UpdateRule{kFloat16[index], Formula::kSlots, row_type, parameters};
    case DType::kBFloat16: return UpdateRule{kBFloat16[index], Formula::kSlots, row_type, parameters};
    default:
      return InvalidArgument(StrCat("update: rows of ", DTypeName(row_type), ", wanted float32, float16 or bfloat16"));
  }
}

// Checks that a hyperparameter is a finite number.
inline Status CheckFinite(const char* optimizer, const char* parameter, float value) {
  if (std::isfinite(value)) return OkStatus();
  return InvalidArgument(StrCat(optimizer, ": ", parameter, " is ", value, ", wanted a finite number"));
}

}  // namespace lockstep::kernel
