#include "core/comm/collective/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "core/base/float16.h"

namespace lockstep {
namespace {

// Calls work with a value of the element's type; returns false for types that are not plain C++ numbers.
template <typename Work>
bool WithType(DType dtype, const Work& work) {
  switch (dtype) {
    case DType::kFloat32: return work(float{}), true;
    case DType::kFloat64: return work(double{}), true;
    case DType::kInt8: return work(int8_t{}), true;
    case DType::kInt16: return work(int16_t{}), true;
    case DType::kInt32: return work(int32_t{}), true;
    case DType::kInt64: return work(int64_t{}), true;
    case DType::kUInt8: return work(uint8_t{}), true;
    case DType::kUInt16: return work(uint16_t{}), true;
    case DType::kUInt32: return work(uint32_t{}), true;
    case DType::kUInt64: return work(uint64_t{}), true;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kBool: break;
  }
  return false;
}

// Truncates. Values beyond the type's range become its limit, and NaN becomes 0; C++ does not define these cases.
template <typename T>
T FromDouble(double value) {
  using Limits = std::numeric_limits<T>;
  // The largest number itself may not be a double; the number above it is.
  if (value >= std::ldexp(1.0, Limits::digits)) return Limits::max();
  if (value <= static_cast<double>(Limits::min())) return Limits::min();
  return value != value ? T{0} : static_cast<T>(value);
}

}  // namespace

void Scale(DType dtype, double factor, const void* in, int64_t count, void* out) {
  const bool done = WithType(dtype, [&]<typename T>(T) {
    const auto* from = static_cast<const T*>(in);
    auto* to = static_cast<T*>(out);
    if constexpr (std::is_floating_point_v<T>) {
      const T own = static_cast<T>(factor);
      for (int64_t i = 0; i < count; ++i) to[i] = from[i] * own;
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = FromDouble<T>(static_cast<double>(from[i]) * factor);
    }
  });
  if (done) return;
  const auto* from = static_cast<const uint16_t*>(in);
  auto* to = static_cast<uint16_t*>(out);
  const auto single = static_cast<float>(factor);
  switch (dtype) {
    case DType::kFloat16:
      for (int64_t i = 0; i < count; ++i) to[i] = FloatToFloat16(Float16ToFloat(from[i]) * single);
      break;
    case DType::kBFloat16:
      for (int64_t i = 0; i < count; ++i) to[i] = FloatToBFloat16(BFloat16ToFloat(from[i]) * single);
      break;
    default:
      if (in != out && count > 0) std::memmove(out, in, static_cast<size_t>(count));
  }
}

void Divide(DType dtype, int64_t divisor, const void* in, int64_t count, void* out) {
  const bool done = WithType(dtype, [&]<typename T>(T) {
    const auto* from = static_cast<const T*>(in);
    auto* to = static_cast<T*>(out);
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(from[i] / static_cast<T>(divisor));
  });
  if (done) return;
  const auto* from = static_cast<const uint16_t*>(in);
  auto* to = static_cast<uint16_t*>(out);
  const auto single = static_cast<float>(divisor);
  if (dtype == DType::kFloat16) {
    for (int64_t i = 0; i < count; ++i) to[i] = FloatToFloat16(Float16ToFloat(from[i]) / single);
  } else if (dtype == DType::kBFloat16) {
    for (int64_t i = 0; i < count; ++i) to[i] = FloatToBFloat16(BFloat16ToFloat(from[i]) / single);
  }
}

void ConvertIntegers(DType from, const void* in, int64_t count, DType to, void* out) {
  WithType(from, [&]<typename From>(From) {
    if constexpr (std::is_integral_v<From>) {
      WithType(to, [&]<typename To>(To) {
        if constexpr (std::is_integral_v<To>) {
          using Limits = std::numeric_limits<To>;
          const auto* read = static_cast<const From*>(in);
          auto* written = static_cast<To*>(out);
          for (int64_t i = 0; i < count; ++i) {
            if (std::in_range<To>(read[i])) {
              written[i] = static_cast<To>(read[i]);
            } else {
              written[i] = std::cmp_less(read[i], 0) ? Limits::min() : Limits::max();
            }
          }
        }
      });
    }
  });
}

void FillNeutral(ReduceOp op, DType dtype, int64_t count, void* out) {
  const bool done = WithType(dtype, [&]<typename T>(T) {
    using Limits = std::numeric_limits<T>;
    T value = 0;
    if (op == ReduceOp::kProduct) value = 1;
    if (op == ReduceOp::kMin) value = Limits::has_infinity ? Limits::infinity() : Limits::max();
    if (op == ReduceOp::kMax) value = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    std::fill_n(static_cast<T*>(out), count, value);
  });
  if (done) return;
  // For bool, products and minima are "and".
  if (dtype == DType::kBool) {
    std::fill_n(static_cast<uint8_t*>(out), count, op == ReduceOp::kProduct || op == ReduceOp::kMin ? 1 : 0);
    return;
  }
  float value = 0;
  if (op == ReduceOp::kProduct) value = 1;
  if (op == ReduceOp::kMin) value = std::numeric_limits<float>::infinity();
  if (op == ReduceOp::kMax) value = -std::numeric_limits<float>::infinity();
  const uint16_t bits = dtype == DType::kFloat16 ? FloatToFloat16(value) : FloatToBFloat16(value);
  std::fill_n(static_cast<uint16_t*>(out), count, bits);
}

}  // namespace lockstep
