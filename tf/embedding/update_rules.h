#pragma once

#include <span>
#include <string_view>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/embedding/optimizer/update.h"

// An update op names its optimizer by a rule's name. It has as many slots as the rule, and the rule's hyperparameters
// as scalars in the order below. The other side is lockstep/_src/tables/updates.
//
//   name                          slots              hyperparameters
//   sgd                           -                  learning_rate
//   momentum, nesterov            momentum           learning_rate, momentum
//   keras_momentum                momentum           the same; momentum.h says how Keras differs
//   keras_nesterov                momentum           the same
//   adagrad, keras_adagrad        accumulator        learning_rate, epsilon (outside of the root; Keras: inside)
//   adam                          m, v               learning_rate, beta1, beta2, epsilon, beta1_power, beta2_power
//   keras_adam                    m, v               the same, 1 - beta1, 1 - beta2
//   ftrl                          accum, linear      learning_rate, learning_rate_power, l1, l2, l2_shrinkage
//   rms_prop                      rms, momentum      learning_rate, rho, momentum, epsilon, 1 - rho
//   centered_rms_prop             rms, momentum, mg  the same
//   plain_rms_prop                rms                the same, but without momentum and its slot
//   plain_centered_rms_prop       rms, mg            the same
namespace lockstep {

struct RuleKind {
  std::string_view name;
  int num_slots;
  int num_hyperparameters;
  // Makes the rule; returns the INVALID_ARGUMENT of the optimizer's options. hyperparameters: [num_hyperparameters].
  Result<UpdateRule> (*make)(std::span<const float> hyperparameters, DType row_type);
};

// Returns a rule that lives as long as the program. INVALID_ARGUMENT for an unknown name.
Result<const RuleKind*> FindRule(std::string_view name);

}  // namespace lockstep
