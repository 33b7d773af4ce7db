#pragma once

#include <array>

#include "core/embedding/optimizer/update.h"

namespace lockstep {

// RMSProp (Tieleman and Hinton, 2012) of rows that are touched, as ResourceSparseApplyRMSProp and, centered,
// ResourceSparseApplyCenteredRMSProp compute it; the averages of other rows rest:
//
//   ms = rho * ms + (1 - rho) * g^2
//   centered:  mg = rho * mg + (1 - rho) * g;   d = ms - mg^2 + epsilon           otherwise:  d = ms + epsilon
//   mom = momentum * mom + learning_rate * g / sqrt(d);   w -= mom
//
// Keras' RMSprop without momentum decays ms of all rows in every step: ApplyZeroGradients with the same rule does that.
struct RmsPropOptions {
  float learning_rate = 0.001f;
  float rho = 0.9f;
  float momentum = 0;
  float epsilon = 1e-7f;
  bool centered = false;
  // What ms begins with: 1 in tf.compat.v1.train.RMSPropOptimizer, 0 in Keras. Part of Slots(), not of the rule.
  float initial_ms = 1;

  // The first num_slots() are used: the last one only where it is centered.
  std::array<SlotSpec, 3> Slots() const { return {{{"rms", initial_ms}, {"momentum", 0}, {"mg", 0}}}; }
  int num_slots() const { return centered ? 3 : 2; }
  // INVALID_ARGUMENT for a parameter that is not finite, or a row type that rows can't have.
  Result<UpdateRule> Rule(DType row_type, InstructionSet set = BestInstructionSet()) const;
};

}  // namespace lockstep
