#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "core/base/dtype.h"
#include "core/base/elements.h"
#include "core/comm/collective/communicator.h"

// The arithmetic of one element, for loops on CPUs (reduce.cc, elementwise.cc) and on devices (core/device). Both have
// the same bits, because there is one source. All functions are constexpr: device code may call only such functions.
// They are forced inline for the reason that reduce.cc gives.
namespace lockstep {

// A bool is a byte that is zero or not; results are 0 or 1.
struct Bool {
  using Stored = uint8_t;
  using Value = bool;
  [[gnu::always_inline]] static constexpr Value Load(Stored stored) { return stored != 0; }
  [[gnu::always_inline]] static constexpr Stored Store(Value value) { return value; }
};

// Calls `work` with an object of the policy (core/base/elements.h) of the type, and returns its result.
template <typename Work>
constexpr auto WithElement(DType dtype, const Work& work) {
  switch (dtype) {
    case DType::kFloat32: return work(Plain<float>());
    case DType::kFloat64: return work(Plain<double>());
    case DType::kFloat16: return work(Half());
    case DType::kBFloat16: return work(BFloat());
    case DType::kInt8: return work(Plain<int8_t>());
    case DType::kInt16: return work(Plain<int16_t>());
    case DType::kInt32: return work(Plain<int32_t>());
    case DType::kInt64: return work(Plain<int64_t>());
    case DType::kUInt8: return work(Plain<uint8_t>());
    case DType::kUInt16: return work(Plain<uint16_t>());
    case DType::kUInt32: return work(Plain<uint32_t>());
    case DType::kUInt64: return work(Plain<uint64_t>());
    case DType::kBool: break;
  }
  return work(Bool());
}

// Integers are added and multiplied as unsigned numbers of at least 32 bits, where overflow wraps by definition. (Two
// uint16 would be promoted to int, whose product may overflow.)
template <typename T>
using Wrapping = std::make_unsigned_t<std::common_type_t<T, int>>;

// The type for a type's sums and products: signed and unsigned results have the same bits, so both share one loop.
template <typename E>
struct ArithmeticOf {
  using Type = E;
};

template <std::integral T>
struct ArithmeticOf<Plain<T>> {
  using Type = Plain<std::make_unsigned_t<T>>;
};

// The operations. Apply takes the accumulator first: floating-point sums and Min and Max of equal zeros depend on it.
struct Sum {
  template <typename V>
  [[gnu::always_inline]] static constexpr V Apply(V a, V b) {
    if constexpr (std::is_same_v<V, bool>) {
      return a | b;
    } else if constexpr (std::is_integral_v<V>) {
      return static_cast<V>(static_cast<Wrapping<V>>(a) + static_cast<Wrapping<V>>(b));
    } else {
      return a + b;
    }
  }
};

struct Product {
  template <typename V>
  [[gnu::always_inline]] static constexpr V Apply(V a, V b) {
    if constexpr (std::is_same_v<V, bool>) {
      return a & b;
    } else if constexpr (std::is_integral_v<V>) {
      return static_cast<V>(static_cast<Wrapping<V>>(a) * static_cast<Wrapping<V>>(b));
    } else {
      return a * b;
    }
  }
};

// A NaN in b is taken because it differs from itself; a NaN in a is kept because no comparison with it holds.
struct Min {
  template <typename V>
  [[gnu::always_inline]] static constexpr V Apply(V a, V b) {
    return (b < a || b != b) ? b : a;
  }
};

struct Max {
  template <typename V>
  [[gnu::always_inline]] static constexpr V Apply(V a, V b) {
    return (b > a || b != b) ? b : a;
  }
};

// Truncates. Values beyond the type's range become its limit, and NaN becomes 0; C++ does not define these cases.
template <typename T>
[[gnu::always_inline]] constexpr T FromDouble(double value) {
  using Limits = std::numeric_limits<T>;
  // The largest number itself may not be a double. The number above it is one, and its half too.
  constexpr double above = 2.0 * static_cast<double>(uint64_t{1} << (Limits::digits - 1));
  if (value >= above) return Limits::max();
  if (value <= static_cast<double>(Limits::min())) return Limits::min();
  return value != value ? T{0} : static_cast<T>(value);
}

// Multiplies by a factor that was converted to Multiplier<E>: Scale (elementwise.h).
template <typename E>
using Multiplier = std::conditional_t<std::is_integral_v<typename E::Value>, double, typename E::Value>;

template <typename E>
[[gnu::always_inline]] constexpr typename E::Stored Multiplied(typename E::Stored stored, Multiplier<E> factor) {
  if constexpr (std::is_same_v<E, Bool>) {
    return stored;
  } else if constexpr (std::is_integral_v<typename E::Value>) {
    return FromDouble<typename E::Value>(static_cast<double>(stored) * factor);
  } else {
    return E::Store(E::Load(stored) * factor);
  }
}

// Divides: Divide (elementwise.h).
template <typename E>
[[gnu::always_inline]] constexpr typename E::Stored Divided(typename E::Stored stored, typename E::Value divisor) {
  if constexpr (std::is_same_v<E, Bool>) {
    return stored;
  } else {
    return E::Store(static_cast<typename E::Value>(E::Load(stored) / divisor));
  }
}

// Returns an integer of another type; a value beyond the type's range becomes its limit: ConvertIntegers
// (elementwise.h).
template <std::integral To, std::integral From>
[[gnu::always_inline]] constexpr To Limited(From value) {
  using Limits = std::numeric_limits<To>;
  if (std::in_range<To>(value)) return static_cast<To>(value);
  return std::cmp_less(value, 0) ? Limits::min() : Limits::max();
}

// Returns the neutral element of a reduction: FillNeutral (elementwise.h).
template <typename E>
constexpr typename E::Stored Neutral(ReduceOp op) {
  using Limits = std::numeric_limits<typename E::Value>;
  typename E::Value value = 0;
  if (op == ReduceOp::kProduct) value = 1;
  if (op == ReduceOp::kMin) value = Limits::has_infinity ? Limits::infinity() : Limits::max();
  if (op == ReduceOp::kMax) value = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  return E::Store(value);
}

}  // namespace lockstep
