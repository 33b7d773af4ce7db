#pragma once

#include <array>
#include <optional>

#include "core/embedding/optimizer/update.h"

namespace lockstep {

// Adam (Kingma and Ba, 2015):
//
//   m = beta1 * m + (1 - beta1) * g;   v = beta2 * v + (1 - beta2) * g^2
//   w -= learning_rate * sqrt(1 - beta2_power) / (1 - beta1_power) * m / (sqrt(v) + epsilon)
//
// There are two ways with rows that a step doesn't touch, and one rule for both:
//
//   lazy           (ApplyUpdate alone) moments and weights of such rows rest: LazyAdam of TensorFlow Addons, DeepRec's
//                  Adam of embedding variables. What dynamic tables are best trained with.
//   TensorFlow's   tf.compat.v1.train.AdamOptimizer and Keras let the moments of all rows decay in every step, and all
//                  weights move on by what is left of them: exactly Adam with a gradient of zero. So the step is
//                  ApplyUpdate for the touched rows, and ApplyZeroGradients with the same rule for the others. It costs
//                  a pass over the whole table in every step, as it does in TensorFlow. A dynamic table takes the rows
//                  that it has; that gives what a static table of all keys would, as rows that were never touched have
//                  moments of zero and don't move.
struct AdamOptions {
  float learning_rate = 0.001f;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-7f;
  // beta1 and beta2 to the power of this step, which is 1 for the first: TensorFlow keeps them in variables.
  float beta1_power = 0.9f;
  float beta2_power = 0.999f;
  // 1 - beta1 and 1 - beta2, for callers that know them better: the float32 nearest to 1 - 0.999 differs from 1 less
  // the float32 nearest to 0.999 in the fifth digit. TensorFlow's kernels compute the latter, Keras 3 the former.
  std::optional<float> one_minus_beta1 = std::nullopt;
  std::optional<float> one_minus_beta2 = std::nullopt;

  static constexpr std::array<SlotSpec, 2> Slots() { return {{{"m", 0}, {"v", 0}}}; }
  // INVALID_ARGUMENT for a parameter that is not finite, a beta1_power of 1, or a row type that rows can't have.
  Result<UpdateRule> Rule(DType row_type, InstructionSet set = BestInstructionSet()) const;
};

}  // namespace lockstep
