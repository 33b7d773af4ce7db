#include "core/embedding/optimizer/ftrl.h"

#include "core/embedding/optimizer/kernel.h"

namespace lockstep {
namespace {

template <bool kRoot>
struct Formula {
  static constexpr int kSlots = 2;
  [[gnu::always_inline]] explicit Formula(const float* parameters)
      : learning_rate(parameters[0]),
        power(parameters[1]),
        l1(parameters[2]),
        l2(parameters[3]),
        shrinkage(parameters[4]) {}

  [[gnu::always_inline]] float Power(float accumulator) const {
    return kRoot ? __builtin_sqrtf(accumulator) : __builtin_powf(accumulator, -power);
  }

  [[gnu::always_inline]] float Next(float weight, float gradient, float* slots) const {
    float& accumulator = slots[0];
    float& linear = slots[1];
    const float next = accumulator + gradient * gradient;
    const float raised = Power(next);
    linear += gradient + 2 * shrinkage * weight - (raised - Power(accumulator)) / learning_rate * weight;
    accumulator = next;
    const float shrunk = (__builtin_copysignf(l1, linear) - linear) / (raised / learning_rate + 2 * l2);
    return __builtin_fabsf(linear) > l1 ? shrunk : 0.0f;
  }

  float learning_rate, power, l1, l2, shrinkage;
};

}  // namespace

Result<UpdateRule> FtrlOptions::Rule(DType row_type, InstructionSet set) const {
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("FTRL", "learning_rate", learning_rate));
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("FTRL", "learning_rate_power", learning_rate_power));
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("FTRL", "l1", l1));
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("FTRL", "l2", l2));
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("FTRL", "l2_shrinkage", l2_shrinkage));
  if (learning_rate <= 0 || learning_rate_power > 0 || l1 < 0 || l2 < 0 || l2_shrinkage < 0) {
    return InvalidArgument(StrCat("FTRL: learning_rate ", learning_rate, ", learning_rate_power ", learning_rate_power,
                                  ", l1 ", l1, ", l2 ", l2, ", l2_shrinkage ", l2_shrinkage,
                                  ", wanted a positive rate, a power of at most 0, and no negative regularization"));
  }
  const std::array<float, kMaxParameters> parameters = {learning_rate, learning_rate_power, l1, l2, l2_shrinkage};
  return learning_rate_power == -0.5f ? kernel::MakeRule<Formula<true>>(row_type, set, parameters)
                                      : kernel::MakeRule<Formula<false>>(row_type, set, parameters);
}

}  // namespace lockstep
