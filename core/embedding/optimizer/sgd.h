#pragma once

#include <array>

#include "core/embedding/optimizer/hyperparameters.h"
#include "core/embedding/optimizer/update.h"

namespace lockstep {

// Gradient descent: w -= learning_rate * g. TensorFlow's GradientDescentOptimizer subtracts duplicate gradients one
// after another. This rule subtracts their sum, which is equal up to rounding.
struct SgdOptions {
  float learning_rate = 0.01f;

  static constexpr int num_slots() { return 0; }
  // INVALID_ARGUMENT for a parameter that is not finite, or a row type that rows cannot have.
  Result<UpdateRule> Rule(DType row_type, InstructionSet set = BestInstructionSet()) const;
};

inline constexpr std::array kSgdHyperparameters = {
    Hyperparameter<SgdOptions>::Of<&SgdOptions::learning_rate>("learning_rate"),
};

}  // namespace lockstep
