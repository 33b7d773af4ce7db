#include "core/embedding/optimizer/sgd.h"

#include "core/embedding/optimizer/kernel.h"

namespace lockstep {
namespace {

struct Formula {
  static constexpr int kSlots = 0;
  [[gnu::always_inline]] explicit Formula(const float* parameters) : learning_rate(parameters[0]) {}

  [[gnu::always_inline]] float Next(float weight, float gradient, float* slots) const {
    return weight - learning_rate * gradient;
  }

  float learning_rate;
};

}  // namespace

Result<UpdateRule> SgdOptions::Rule(DType row_type, InstructionSet set) const {
  LOCKSTEP_RETURN_IF_ERROR(kernel::CheckFinite("SGD", "learning_rate", learning_rate));
  return kernel::MakeRule<Formula>(row_type, set, {learning_rate});
}

}  // namespace lockstep
