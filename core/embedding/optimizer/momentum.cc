#include "core/embedding/optimizer/momentum.h"

#include "core/embedding/optimizer/kernel.h"

namespace lockstep {
namespace {

template <bool kKeras, bool kNesterov>
struct Formula {
  static constexpr int kSlots = 1;
  [[gnu::always_inline]] explicit Formula(const float* parameters)
      : learning_rate(parameters[0]), momentum(parameters[1]) {}

  [[gnu::always_inline]] float Next(float weight, float gradient, float* slots) const {
    float& velocity = slots[0];
    if constexpr (kKeras) {
      velocity = velocity * momentum - gradient * learning_rate;
      return weight + (kNesterov ? velocity * momentum - gradient * learning_rate : velocity);
    } else {
      velocity = velocity * momentum + gradient;
      return weight -
             (kNesterov ? gradient * learning_rate + velocity * (momentum * learning_rate) : velocity * learning_rate);
    }
  }

  float learning_rate, momentum;
};

}  // namespace

Result<UpdateRule> MomentumOptions::Rule(DType row_type, InstructionSet set) const {
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("Momentum", "learning_rate", learning_rate));
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("Momentum", "momentum", momentum));
  const std::array<float, kMaxParameters> parameters = {learning_rate, momentum};
  if (keras && nesterov) return kernel::MakeRule<Formula<true, true>>(row_type, set, parameters);
  if (keras) return kernel::MakeRule<Formula<true, false>>(row_type, set, parameters);
  if (nesterov) return kernel::MakeRule<Formula<false, true>>(row_type, set, parameters);
  return kernel::MakeRule<Formula<false, false>>(row_type, set, parameters);
}

}  // namespace lockstep
