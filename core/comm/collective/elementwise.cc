#include "core/comm/collective/elementwise.h"

#include <algorithm>
#include <type_traits>

#include "core/comm/collective/operations.h"

namespace lockstep {
namespace {

template <typename E>
constexpr bool IsIntegers = std::is_integral_v<typename E::Value> && !std::is_same_v<E, Bool>;

}  // namespace

void Scale(DType dtype, double factor, const void* in, int64_t count, void* out) {
  WithElement(dtype, [&]<typename E>(E) {
    const auto* from = static_cast<const typename E::Stored*>(in);
    auto* to = static_cast<typename E::Stored*>(out);
    const auto own = static_cast<Multiplier<E>>(factor);
    for (int64_t i = 0; i < count; ++i) to[i] = Multiplied<E>(from[i], own);
  });
}

void Divide(DType dtype, int64_t divisor, const void* in, int64_t count, void* out) {
  WithElement(dtype, [&]<typename E>(E) {
    const auto* from = static_cast<const typename E::Stored*>(in);
    auto* to = static_cast<typename E::Stored*>(out);
    const auto own = static_cast<typename E::Value>(divisor);
    for (int64_t i = 0; i < count; ++i) to[i] = Divided<E>(from[i], own);
  });
}

void ConvertIntegers(DType from, const void* in, int64_t count, DType to, void* out) {
  WithElement(from, [&]<typename From>(From) {
    if constexpr (IsIntegers<From>) {
      WithElement(to, [&]<typename To>(To) {
        if constexpr (IsIntegers<To>) {
          const auto* read = static_cast<const typename From::Stored*>(in);
          auto* written = static_cast<typename To::Stored*>(out);
          for (int64_t i = 0; i < count; ++i) written[i] = Limited<typename To::Value>(read[i]);
        }
      });
    }
  });
}

void FillNeutral(ReduceOp op, DType dtype, int64_t count, void* out) {
  WithElement(dtype, [&]<typename E>(E) { std::fill_n(static_cast<typename E::Stored*>(out), count, Neutral<E>(op)); });
}

}  // namespace lockstep
