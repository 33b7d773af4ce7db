#include "core/comm/collective/operations.h"
#include "core/device/kernels.h"
#include "core/device/packs.cuh"

namespace lockstep::device {
namespace {

template <typename E>
struct MultiplyBy {
  Multiplier<E> factor;
  __device__ typename E::Stored operator()(typename E::Stored stored) const { return Multiplied<E>(stored, factor); }
};

template <typename E>
struct DivideBy {
  typename E::Value divisor;
  __device__ typename E::Stored operator()(typename E::Stored stored) const { return Divided<E>(stored, divisor); }
};

// A double that becomes a 16-bit number is rounded once: first towards zero to a float whose last bit says whether
// anything was lost ("round to odd"), which rounding to 16 bits then takes into account.
constexpr float RoundToOdd(double value) {
  const auto near = static_cast<float>(value);
  const double exact = near;
  if (exact == value || value != value) return near;
  auto bits = std::bit_cast<uint32_t>(near);
  if ((exact < 0 ? -exact : exact) > (value < 0 ? -value : value)) --bits;
  return std::bit_cast<float>(bits | 1);
}

template <typename From, typename To>
struct ConvertTo {
  __device__ typename To::Stored operator()(typename From::Stored stored) const {
    const auto value = From::Load(stored);
    if constexpr (sizeof(typename From::Stored) == 8 && sizeof(typename To::Stored) == 2) {
      return To::Store(RoundToOdd(value));
    } else {
      return To::Store(static_cast<typename To::Value>(value));
    }
  }
};

template <typename From, typename To>
struct LimitTo {
  __device__ typename To::Stored operator()(typename From::Stored stored) const {
    return Limited<typename To::Value>(stored);
  }
};

// Whether the sum of a mean of E is computed in Wide (core/comm/named/named_plan.h).
template <typename E, typename Wide>
constexpr bool kIsWidened =
    std::is_integral_v<typename E::Value> && !std::is_same_v<E, Bool> &&
    (std::is_same_v<Wide, Plain<int32_t>> ? sizeof(typename E::Stored) < 4
                                          : std::is_same_v<Wide, Plain<int64_t>> && sizeof(typename E::Stored) == 4);

template <typename T>
__global__ void FillKernel(T value, int64_t count, T* out) {
  for (int64_t i = ThreadIndex(); i < count; i += NumThreads()) out[i] = value;
}

// Types of floating-point numbers, in which work that is for them only is called.
template <typename E>
constexpr bool kIsFloating = std::is_floating_point_v<typename E::Value>;

// For functions that leave the elements as they are.
Error CopyUnlessInPlace(Stream stream, const void* in, int64_t bytes, void* out) {
  return in == out ? kSuccess : Copy(stream, out, in, bytes);
}

}  // namespace

Error Scale(Stream stream, DType dtype, double factor, int64_t count, const void* in, void* out) {
  return WithElement(dtype, [&]<typename E>(E) -> Error {
    using T = typename E::Stored;
    if constexpr (std::is_same_v<E, Bool>) {
      return CopyUnlessInPlace(stream, in, count, out);
    } else {
      return Map<T, T>(stream, in, count, out, MultiplyBy<E>{static_cast<Multiplier<E>>(factor)});
    }
  });
}

Error Divide(Stream stream, DType dtype, int64_t divisor, int64_t count, const void* in, void* out) {
  return WithElement(dtype, [&]<typename E>(E) -> Error {
    using T = typename E::Stored;
    if constexpr (std::is_same_v<E, Bool>) {
      return CopyUnlessInPlace(stream, in, count, out);
    } else {
      const auto own = static_cast<typename E::Value>(divisor);
      if (own == 0) return cudaErrorInvalidValue;
      return Map<T, T>(stream, in, count, out, DivideBy<E>{own});
    }
  });
}

Error Convert(Stream stream, DType from, const void* in, int64_t count, DType to, void* out) {
  return WithElement(from, [&]<typename From>(From) -> Error {
    return WithElement(to, [&]<typename To>(To) -> Error {
      if constexpr (kIsWidened<From, To> || kIsWidened<To, From>) {
        return Map<typename From::Stored, typename To::Stored>(stream, in, count, out, LimitTo<From, To>());
      } else if constexpr (!kIsFloating<From> || !kIsFloating<To>) {
        return cudaErrorInvalidValue;
      } else if constexpr (std::is_same_v<From, To>) {
        return CopyUnlessInPlace(stream, in, count * static_cast<int64_t>(sizeof(typename To::Stored)), out);
      } else {
        return Map<typename From::Stored, typename To::Stored>(stream, in, count, out, ConvertTo<From, To>());
      }
    });
  });
}

Error FillNeutral(Stream stream, ReduceOp op, DType dtype, int64_t count, void* out) {
  if (count == 0) return kSuccess;
  return WithElement(dtype, [&]<typename E>(E) -> Error {
    using T = typename E::Stored;
    using Bits = std::conditional_t<
        sizeof(T) == 1, uint8_t,
        std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;
    return Launch(Raw(stream), NumBlocks(count), kThreads, 0, FillKernel<Bits>, std::bit_cast<Bits>(Neutral<E>(op)),
                  count, static_cast<Bits*>(out));
  });
}

}  // namespace lockstep::device
