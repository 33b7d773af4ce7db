#pragma once

#include <array>
#include <optional>

#include "core/embedding/optimizer/hyperparameters.h"
#include "core/embedding/optimizer/update.h"

namespace lockstep {

// Adam (Kingma and Ba, 2015):
//
//   m = beta1 * m + (1 - beta1) * g;   v = beta2 * v + (1 - beta2) * g^2
//   w -= learning_rate * sqrt(1 - beta2_power) / (1 - beta1_power) * m / (sqrt(v) + epsilon)
//
// There are two treatments of rows that a step does not touch, with the same rule:
//
//   lazy           (ApplyUpdate only) moments and weights of such rows do not change: LazyAdam of TensorFlow Addons,
//                  and DeepRec's Adam for embedding variables. It is the best choice for dynamic tables.
//   TensorFlow's   In tf.compat.v1.train.AdamOptimizer and Keras, all moments decay in every step, and all
//                  weights move by the decayed moments. This is exactly Adam with a gradient of zero. So the step is
//                  ApplyUpdate for the touched rows, and ApplyZeroGradients with the same rule for the others. It
//                  passes over the whole table in every step, as TensorFlow does. A dynamic table takes its existing
//                  rows. The result is the same as with a static table of all keys: rows that were never touched have
//                  moments of zero and do not move.
struct AdamOptions {
  float learning_rate = 0.001f;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-7f;
  // beta1 and beta2 to the power of this step; the first step is 1. TensorFlow keeps them in variables.
  float beta1_power = 0.9f;
  float beta2_power = 0.999f;
  // 1 - beta1 and 1 - beta2, for callers with more precise values. The float32 nearest to 1 - 0.999 differs in the
  // fifth digit from 1 minus the float32 nearest to 0.999. TensorFlow's kernels use the latter, Keras 3 the former.
  std::optional<float> one_minus_beta1 = std::nullopt;
  std::optional<float> one_minus_beta2 = std::nullopt;

  static constexpr int num_slots() { return 2; }
  // INVALID_ARGUMENT for a parameter that is not finite, a beta1_power of 1, or a row type that rows cannot have.
  Result<UpdateRule> Rule(DType row_type, InstructionSet set = BestInstructionSet()) const;
};

inline constexpr std::array kAdamHyperparameters = {
    Hyperparameter<AdamOptions>::Of<&AdamOptions::learning_rate>("learning_rate"),
    Hyperparameter<AdamOptions>::Of<&AdamOptions::beta1>("beta1"),
    Hyperparameter<AdamOptions>::Of<&AdamOptions::beta2>("beta2"),
    Hyperparameter<AdamOptions>::Of<&AdamOptions::epsilon>("epsilon"),
    Hyperparameter<AdamOptions>::Of<&AdamOptions::beta1_power>("beta1_power"),
    Hyperparameter<AdamOptions>::Of<&AdamOptions::beta2_power>("beta2_power"),
};

// The same with 1 - beta1 and 1 - beta2.
inline constexpr std::array kPreciseAdamHyperparameters = {
    Hyperparameter<AdamOptions>::Of<&AdamOptions::learning_rate>("learning_rate"),
    Hyperparameter<AdamOptions>::Of<&AdamOptions::beta1>("beta1"),
    Hyperparameter<AdamOptions>::Of<&AdamOptions::beta2>("beta2"),
    Hyperparameter<AdamOptions>::Of<&AdamOptions::epsilon>("epsilon"),
    Hyperparameter<AdamOptions>::Of<&AdamOptions::beta1_power>("beta1_power"),
    Hyperparameter<AdamOptions>::Of<&AdamOptions::beta2_power>("beta2_power"),
    Hyperparameter<AdamOptions>::Of<&AdamOptions::one_minus_beta1>("one_minus_beta1"),
    Hyperparameter<AdamOptions>::Of<&AdamOptions::one_minus_beta2>("one_minus_beta2"),
};

}  // namespace lockstep
