#include "core/embedding/optimizer/rms_prop.h"

#include "core/embedding/optimizer/kernel.h"

namespace lockstep {
namespace {

template <bool kCentered>
struct Formula {
  static constexpr int kSlots = kCentered ? 3 : 2;
  [[gnu::always_inline]] explicit Formula(const float* parameters)
      : learning_rate(parameters[0]), rho(parameters[1]), momentum(parameters[2]), epsilon(parameters[3]) {}

  [[gnu::always_inline]] float Next(float weight, float gradient, float* slots) const {
    float& ms = slots[0];
    float& step = slots[1];
    ms = ms * rho + gradient * gradient * (1 - rho);
    float divisor = ms + epsilon;
    if constexpr (kCentered) {
      float& mg = slots[2];
      mg = mg * rho + gradient * (1 - rho);
      divisor = divisor - mg * mg;
    }
    step = step * momentum + gradient * learning_rate / __builtin_sqrtf(divisor);
    return weight - step;
  }

  float learning_rate, rho, momentum, epsilon;
};

}  // namespace

Result<UpdateRule> RmsPropOptions::Rule(DType row_type, InstructionSet set) const {
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("RMSProp", "learning_rate", learning_rate));
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("RMSProp", "rho", rho));
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("RMSProp", "momentum", momentum));
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("RMSProp", "epsilon", epsilon));
  const std::array<float, 8> parameters = {learning_rate, rho, momentum, epsilon};
  return centered ? kernel::MakeRule<Formula<true>>(row_type, set, parameters)
                  : kernel::MakeRule<Formula<false>>(row_type, set, parameters);
}

}  // namespace lockstep
