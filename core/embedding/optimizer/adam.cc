#include "core/embedding/optimizer/adam.h"

#include "core/embedding/optimizer/kernel.h"

namespace lockstep {
namespace {

struct Formula {
  static constexpr int kSlots = 2;
  [[gnu::always_inline]] explicit Formula(const float* parameters)
      : rate(parameters[0]),
        beta1(parameters[1]),
        beta2(parameters[2]),
        epsilon(parameters[3]),
        rest1(parameters[4]),
        rest2(parameters[5]) {}

  [[gnu::always_inline]] float Next(float weight, float gradient, float* slots) const {
    float& m = slots[0];
    float& v = slots[1];
    m = m * beta1 + gradient * rest1;
    v = v * beta2 + gradient * gradient * rest2;
    return weight - rate * m / (__builtin_sqrtf(v) + epsilon);
  }

  float rate, beta1, beta2, epsilon, rest1, rest2;
};

}  // namespace

Result<UpdateRule> AdamOptions::Rule(DType row_type, InstructionSet set) const {
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("Adam", "beta1", beta1));
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("Adam", "beta2", beta2));
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("Adam", "epsilon", epsilon));
  const float rate = learning_rate * std::sqrt(1 - beta2_power) / (1 - beta1_power);
  if (!std::isfinite(rate)) {
    return InvalidArgument(StrCat("Adam: learning_rate ", learning_rate, " with powers of beta ", beta1_power, " and ",
                                  beta2_power, ", wanted a finite rate and powers below 1"));
  }
  const float rest1 = one_minus_beta1.value_or(1 - beta1), rest2 = one_minus_beta2.value_or(1 - beta2);
  return kernel::MakeRule<Formula>(row_type, set, {rate, beta1, beta2, epsilon, rest1, rest2});
}

}  // namespace lockstep
