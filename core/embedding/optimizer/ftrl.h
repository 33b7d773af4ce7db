#pragma once

#include <array>

#include "core/embedding/optimizer/hyperparameters.h"
#include "core/embedding/optimizer/update.h"

namespace lockstep {

// FTRL-Proximal (McMahan et al., "Ad click prediction: a view from the trenches", 2013), as ResourceSparseApplyFtrl
// and, with l2_shrinkage, ResourceSparseApplyFtrlV2 compute it (multiply_linear_by_lr = false):
//
//   h = g + 2 * l2_shrinkage * w
//   n' = n + g^2;   z += h - (n'^-p - n^-p) / learning_rate * w          p: learning_rate_power
//   w = |z| > l1 ? (sign(z) * l1 - z) / (n'^-p / learning_rate + 2 * l2) : 0
//
// The `beta` of Keras and TensorFlow equals an l2 that is larger by beta / (2 * learning_rate).
struct FtrlOptions {
  float learning_rate = 0.001f;
  float learning_rate_power = -0.5f;  // at most 0; values other than -0.5 call the library's pow for each element
  float l1 = 0;
  float l2 = 0;
  float l2_shrinkage = 0;

  static constexpr int num_slots() { return 2; }
  // INVALID_ARGUMENT for a parameter that is not finite or has the wrong sign, or a row type that rows cannot have.
  Result<UpdateRule> Rule(DType row_type, InstructionSet set = BestInstructionSet()) const;
};

inline constexpr std::array kFtrlHyperparameters = {
    Hyperparameter<FtrlOptions>::Of<&FtrlOptions::learning_rate>("learning_rate"),
    Hyperparameter<FtrlOptions>::Of<&FtrlOptions::learning_rate_power>("learning_rate_power"),
    Hyperparameter<FtrlOptions>::Of<&FtrlOptions::l1>("l1"),
    Hyperparameter<FtrlOptions>::Of<&FtrlOptions::l2>("l2"),
    Hyperparameter<FtrlOptions>::Of<&FtrlOptions::l2_shrinkage>("l2_shrinkage"),
};

}  // namespace lockstep
