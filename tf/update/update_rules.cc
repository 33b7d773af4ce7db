#include "tf/update/update_rules.h"

#include <string>

#include "core/base/strings.h"
#include "core/embedding/optimizer/adagrad.h"
#include "core/embedding/optimizer/adam.h"
#include "core/embedding/optimizer/ftrl.h"
#include "core/embedding/optimizer/hyperparameters.h"
#include "core/embedding/optimizer/momentum.h"
#include "core/embedding/optimizer/rms_prop.h"
#include "core/embedding/optimizer/sgd.h"

namespace lockstep {
namespace {

// The fixed options of each rule.
constexpr SgdOptions kSgd;
constexpr MomentumOptions kMomentum, kNesterov{.nesterov = true};
constexpr MomentumOptions kKerasMomentum{.keras = true}, kKerasNesterov{.nesterov = true, .keras = true};
constexpr AdagradOptions kAdagrad, kKerasAdagrad{.epsilon_place = AdagradOptions::Epsilon::kInside};
constexpr AdamOptions kAdam;
constexpr FtrlOptions kFtrl;
constexpr RmsPropOptions kRmsProp, kCentered{.centered = true};
constexpr RmsPropOptions kPlain{.has_momentum = false}, kPlainCentered{.centered = true, .has_momentum = false};

template <const auto& kHyperparameters>
constexpr auto kNamesOf = NamesOf(kHyperparameters);

template <const auto& kOptions, const auto& kHyperparameters>
Result<UpdateRule> Make(std::span<const float> values, DType row_type) {
  auto options = kOptions;
  for (size_t i = 0; i < kHyperparameters.size(); ++i) kHyperparameters[i].set(options, values[i]);
  return options.Rule(row_type);
}

template <const auto& kOptions, const auto& kHyperparameters>
constexpr RuleKind Kind(std::string_view name) {
  return {name, kOptions.num_slots(), kNamesOf<kHyperparameters>, Make<kOptions, kHyperparameters>};
}

constexpr RuleKind kRules[] = {
    Kind<kSgd, kSgdHyperparameters>("sgd"),
    Kind<kMomentum, kMomentumHyperparameters>("momentum"),
    Kind<kNesterov, kMomentumHyperparameters>("nesterov"),
    Kind<kKerasMomentum, kMomentumHyperparameters>("keras_momentum"),
    Kind<kKerasNesterov, kMomentumHyperparameters>("keras_nesterov"),
    Kind<kAdagrad, kAdagradHyperparameters>("adagrad"),
    Kind<kKerasAdagrad, kAdagradHyperparameters>("keras_adagrad"),
    Kind<kAdam, kAdamHyperparameters>("adam"),
    Kind<kAdam, kPreciseAdamHyperparameters>("keras_adam"),
    Kind<kFtrl, kFtrlHyperparameters>("ftrl"),
    Kind<kRmsProp, kRmsPropHyperparameters>("rms_prop"),
    Kind<kCentered, kRmsPropHyperparameters>("centered_rms_prop"),
    Kind<kPlain, kPlainRmsPropHyperparameters>("plain_rms_prop"),
    Kind<kPlainCentered, kPlainRmsPropHyperparameters>("plain_centered_rms_prop"),
};

}  // namespace

Result<const RuleKind*> FindRule(std::string_view name) {
  std::string names;
  for (const RuleKind& rule : kRules) {
    if (rule.name == name) return &rule;
    names += StrCat(names.empty() ? "" : ", ", rule.name);
  }
  return InvalidArgument(StrCat("update: unknown rule '", name, "'; the rules are ", names));
}

}  // namespace lockstep
