#include "core/embedding/optimizer/rms_prop.h"

#include "core/embedding/optimizer/kernel.h"

namespace lockstep {
namespace {

template <bool kCentered, bool kMomentum>
struct Formula {
  static constexpr int kSlots = 1 + (kMomentum ? 1 : 0) + (kCentered ? 1 : 0);
  [[gnu::always_inline]] explicit Formula(const float* parameters)
      : learning_rate(parameters[0]),
        rho(parameters[1]),
        momentum(parameters[2]),
        epsilon(parameters[3]),
        rest(parameters[4]) {}

  [[gnu::always_inline]] float Next(float weight, float gradient, float* slots) const {
    float& ms = slots[0];
    ms = ms * rho + gradient * gradient * rest;
    float divisor = ms + epsilon;
    if constexpr (kCentered) {
      float& mg = slots[kSlots - 1];
      mg = mg * rho + gradient * rest;
      divisor = divisor - mg * mg;
    }
    float step = gradient * learning_rate / __builtin_sqrtf(divisor);
    if constexpr (kMomentum) {
      step = slots[1] * momentum + step;
      slots[1] = step;
    }
    return weight - step;
  }

  float learning_rate, rho, momentum, epsilon, rest;
};

}  // namespace

Result<UpdateRule> RmsPropOptions::Rule(DType row_type, InstructionSet set) const {
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("RMSProp", "learning_rate", learning_rate));
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("RMSProp", "rho", rho));
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("RMSProp", "momentum", momentum));
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("RMSProp", "epsilon", epsilon));
  const std::array<float, kMaxParameters> parameters = {learning_rate, rho, momentum, epsilon,
                                                        one_minus_rho.value_or(1 - rho)};
  if (centered && has_momentum) return kernel::MakeRule<Formula<true, true>>(row_type, set, parameters);
  if (centered) return kernel::MakeRule<Formula<true, false>>(row_type, set, parameters);
  if (has_momentum) return kernel::MakeRule<Formula<false, true>>(row_type, set, parameters);
  return kernel::MakeRule<Formula<false, false>>(row_type, set, parameters);
}

}  // namespace lockstep
