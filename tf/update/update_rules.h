#pragma once

#include <span>
#include <string_view>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/embedding/optimizer/update.h"

// An update op names its optimizer by a rule's name. It has as many slots as the rule, and the rule's hyperparameters
// as scalars with their names, in the order below. The kernel compares the names when it is constructed, so an order
// that is not the rule's is an error, and a step costs no more. The other side is lockstep/_src/tables/updates.
//
//   name                          slots                hyperparameters
//   sgd                           -                    learning_rate
//   momentum, nesterov            momentum             learning_rate, momentum
//   keras_momentum                momentum             the same; momentum.h says how Keras differs
//   keras_nesterov                momentum             the same
//   adagrad, keras_adagrad        accumulator          learning_rate, epsilon (outside of the root; Keras: inside)
//   adam                          m, v                 learning_rate, beta1, beta2, epsilon, beta1_power, beta2_power
//   keras_adam                    m, v                 the same, one_minus_beta1, one_minus_beta2
//   ftrl                          accumulator, linear  learning_rate, learning_rate_power, l1, l2, l2_shrinkage
//   rms_prop                      rms, momentum        learning_rate, rho, momentum, epsilon, one_minus_rho
//   centered_rms_prop             rms, momentum, mg    the same
//   plain_rms_prop                rms                  the same without momentum
//   plain_centered_rms_prop       rms, mg              the same without momentum
//
// The names of slots only explain the rules here. Variables, dynamic tables and checkpoints have the optimizer's own
// names, such as "accum" in TensorFlow's FTRL, and its own initial values. Python passes both.
namespace lockstep {

struct RuleKind {
  std::string_view name;
  int num_slots;
  std::span<const std::string_view> hyperparameters;
  // Makes the rule; returns the INVALID_ARGUMENT of the optimizer's options. values: of `hyperparameters`, in their
  // order.
  Result<UpdateRule> (*make)(std::span<const float> values, DType row_type);

  int num_hyperparameters() const { return static_cast<int>(hyperparameters.size()); }
};

// Returns a rule that lives as long as the program. INVALID_ARGUMENT for an unknown name.
Result<const RuleKind*> FindRule(std::string_view name);

}  // namespace lockstep
