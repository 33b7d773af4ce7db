#pragma once

#include <array>
#include <optional>

#include "core/embedding/optimizer/hyperparameters.h"
#include "core/embedding/optimizer/update.h"

namespace lockstep {

// RMSProp (Tieleman and Hinton, 2012) for touched rows, as computed by ResourceSparseApplyRMSProp and, centered,
// ResourceSparseApplyCenteredRMSProp. The averages of other rows do not change:
//
//   ms = rho * ms + (1 - rho) * g^2
//   centered:  mg = rho * mg + (1 - rho) * g;   d = ms - mg^2 + epsilon           otherwise:  d = ms + epsilon
//   mom = momentum * mom + learning_rate * g / sqrt(d);   w -= mom
//
// Keras 3 computes the same for all rows in every step (ApplyZeroGradients), and has no mom if momentum is 0.
struct RmsPropOptions {
  float learning_rate = 0.001f;
  float rho = 0.9f;
  float momentum = 0;
  float epsilon = 1e-7f;
  bool centered = false;
  std::optional<float> one_minus_rho = std::nullopt;  // for callers with a more precise value (adam.h)
  bool has_momentum = true;  // whether there is a slot for mom; without one, momentum is not read

  // The slots are ms, then mom, then mg, without those that the rule does not have.
  constexpr int num_slots() const { return 1 + (has_momentum ? 1 : 0) + (centered ? 1 : 0); }
  // INVALID_ARGUMENT for a parameter that is not finite, or a row type that rows cannot have.
  Result<UpdateRule> Rule(DType row_type, InstructionSet set = BestInstructionSet()) const;
};

inline constexpr std::array kRmsPropHyperparameters = {
    Hyperparameter<RmsPropOptions>::Of<&RmsPropOptions::learning_rate>("learning_rate"),
    Hyperparameter<RmsPropOptions>::Of<&RmsPropOptions::rho>("rho"),
    Hyperparameter<RmsPropOptions>::Of<&RmsPropOptions::momentum>("momentum"),
    Hyperparameter<RmsPropOptions>::Of<&RmsPropOptions::epsilon>("epsilon"),
    Hyperparameter<RmsPropOptions>::Of<&RmsPropOptions::one_minus_rho>("one_minus_rho"),
};

// Without momentum, for has_momentum = false.
inline constexpr std::array kPlainRmsPropHyperparameters = {
    Hyperparameter<RmsPropOptions>::Of<&RmsPropOptions::learning_rate>("learning_rate"),
    Hyperparameter<RmsPropOptions>::Of<&RmsPropOptions::rho>("rho"),
    Hyperparameter<RmsPropOptions>::Of<&RmsPropOptions::epsilon>("epsilon"),
    Hyperparameter<RmsPropOptions>::Of<&RmsPropOptions::one_minus_rho>("one_minus_rho"),
};

}  // namespace lockstep
