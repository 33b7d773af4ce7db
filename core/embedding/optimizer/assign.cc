#include "core/embedding/optimizer/assign.h"

#include "core/embedding/optimizer/kernel.h"

namespace lockstep {
namespace {

struct Formula {
  static constexpr int kSlots = 0;
  [[gnu::always_inline]] explicit Formula(const float* parameters) {}

  [[gnu::always_inline]] float Next(float weight, float gradient, float* slots) const { return gradient; }
};

}  // namespace

Result<UpdateRule> AssignRule(DType row_type, InstructionSet set) {
  return kernel::MakeRule<Formula>(row_type, set, {});
}

}  // namespace lockstep
