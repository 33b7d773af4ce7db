#pragma once

#include <array>

#include "core/embedding/optimizer/hyperparameters.h"
#include "core/embedding/optimizer/update.h"

namespace lockstep {

// Gradient descent with momentum, for touched rows: the velocity of an untouched row does not change.
//
//   tf.compat.v1.train.MomentumOptimizer (ResourceSparseApplyMomentum):
//     a = momentum * a + g;     w -= learning_rate * a,                   nesterov: w -= lr * g + lr * momentum * a
//   keras (ResourceSparseApplyKerasMomentum; Keras 3's SGD computes the same):
//     a = momentum * a - lr*g;  w += a,                                   nesterov: w += momentum * a - lr * g
//
// They differ when the learning rate changes: tf.compat.v1 scales the accumulated gradients by the current rate, Keras
// by the rate of each gradient's step.
struct MomentumOptions {
  float learning_rate = 0.01f;
  float momentum = 0.9f;
  bool nesterov = false;
  bool keras = false;

  static constexpr int num_slots() { return 1; }
  // INVALID_ARGUMENT for a parameter that is not finite, or a row type that rows cannot have.
  Result<UpdateRule> Rule(DType row_type, InstructionSet set = BestInstructionSet()) const;
};

inline constexpr std::array kMomentumHyperparameters = {
    Hyperparameter<MomentumOptions>::Of<&MomentumOptions::learning_rate>("learning_rate"),
    Hyperparameter<MomentumOptions>::Of<&MomentumOptions::momentum>("momentum"),
};

}  // namespace lockstep
