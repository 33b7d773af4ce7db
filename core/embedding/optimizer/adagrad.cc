#include "core/embedding/optimizer/adagrad.h"

#include "core/embedding/optimizer/kernel.h"

namespace lockstep {
namespace {

template <bool kInside>
struct Formula {
  static constexpr int kSlots = 1;
  [[gnu::always_inline]] explicit Formula(const float* parameters)
      : learning_rate(parameters[0]), epsilon(parameters[1]) {}

  [[gnu::always_inline]] float Next(float weight, float gradient, float* slots) const {
    float& accumulator = slots[0];
    accumulator += gradient * gradient;
    const float root = kInside ? __builtin_sqrtf(accumulator + epsilon) : __builtin_sqrtf(accumulator) + epsilon;
    return weight - gradient * learning_rate / root;
  }

  float learning_rate, epsilon;
};

}  // namespace

Result<UpdateRule> AdagradOptions::Rule(DType row_type, InstructionSet set) const {
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("Adagrad", "learning_rate", learning_rate));
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("Adagrad", "epsilon", epsilon));
  const std::array<float, kMaxParameters> parameters = {learning_rate, epsilon};
  return epsilon_place == Epsilon::kInside ? kernel::MakeRule<Formula<true>>(row_type, set, parameters)
                                           : kernel::MakeRule<Formula<false>>(row_type, set, parameters);
}

}  // namespace lockstep
