#pragma once

#include <array>

#include "core/embedding/optimizer/hyperparameters.h"
#include "core/embedding/optimizer/update.h"

namespace lockstep {

// Adagrad (Duchi et al., 2011): a += g^2; then, depending on the place of epsilon:
//
//   kOutside   w -= learning_rate * g / (sqrt(a) + epsilon)     ResourceSparseApplyAdagradV2; with epsilon = 0 it is
//                                                               tf.compat.v1.train.AdagradOptimizer
//   kInside    w -= learning_rate * g / sqrt(a + epsilon)       Adagrad of Keras since 2.11, and of Keras 3
struct AdagradOptions {
  enum class Epsilon : uint8_t { kOutside, kInside };

  float learning_rate = 0.001f;
  float epsilon = 0;
  Epsilon epsilon_place = Epsilon::kOutside;

  static constexpr int num_slots() { return 1; }
  // INVALID_ARGUMENT for a parameter that is not finite, or a row type that rows cannot have.
  Result<UpdateRule> Rule(DType row_type, InstructionSet set = BestInstructionSet()) const;
};

inline constexpr std::array kAdagradHyperparameters = {
    Hyperparameter<AdagradOptions>::Of<&AdagradOptions::learning_rate>("learning_rate"),
    Hyperparameter<AdagradOptions>::Of<&AdagradOptions::epsilon>("epsilon"),
};

}  // namespace lockstep
