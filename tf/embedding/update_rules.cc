#include "tf/embedding/update_rules.h"

#include <algorithm>
#include <array>
#include <string>

#include "core/base/strings.h"
#include "core/embedding/optimizer/adagrad.h"
#include "core/embedding/optimizer/adam.h"
#include "core/embedding/optimizer/ftrl.h"
#include "core/embedding/optimizer/momentum.h"
#include "core/embedding/optimizer/rms_prop.h"
#include "core/embedding/optimizer/sgd.h"

namespace lockstep {
namespace {

using Floats = std::span<const float>;

Result<UpdateRule> Sgd(Floats h, DType type) { return SgdOptions{h[0]}.Rule(type); }

template <bool kNesterov, bool kKeras>
Result<UpdateRule> Momentum(Floats h, DType type) {
  return MomentumOptions{h[0], h[1], kNesterov, kKeras}.Rule(type);
}

template <AdagradOptions::Epsilon kPlace>
Result<UpdateRule> Adagrad(Floats h, DType type) {
  return AdagradOptions{h[0], h[1], kPlace}.Rule(type);
}

template <bool kKeras>
Result<UpdateRule> Adam(Floats h, DType type) {
  AdamOptions options{h[0], h[1], h[2], h[3], h[4], h[5]};
  if constexpr (kKeras) {
    options.one_minus_beta1 = h[6];
    options.one_minus_beta2 = h[7];
  }
  return options.Rule(type);
}

Result<UpdateRule> Ftrl(Floats h, DType type) { return FtrlOptions{h[0], h[1], h[2], h[3], h[4]}.Rule(type); }

template <bool kCentered, bool kMomentum>
Result<UpdateRule> RmsProp(Floats h, DType type) {
  RmsPropOptions options{h[0], h[1], h[2], h[3], kCentered};
  options.one_minus_rho = h[4];
  options.has_momentum = kMomentum;
  return options.Rule(type);
}

constexpr RuleKind kRules[] = {
    {"sgd", 0, 1, Sgd},
    {"momentum", 1, 2, Momentum<false, false>},
    {"nesterov", 1, 2, Momentum<true, false>},
    {"keras_momentum", 1, 2, Momentum<false, true>},
    {"keras_nesterov", 1, 2, Momentum<true, true>},
    {"adagrad", 1, 2, Adagrad<AdagradOptions::Epsilon::kOutside>},
    {"keras_adagrad", 1, 2, Adagrad<AdagradOptions::Epsilon::kInside>},
    {"adam", 2, 6, Adam<false>},
    {"keras_adam", 2, 8, Adam<true>},
    {"ftrl", 2, 5, Ftrl},
    {"rms_prop", 2, 5, RmsProp<false, true>},
    {"centered_rms_prop", 3, 5, RmsProp<true, true>},
    {"plain_rms_prop", 1, 5, RmsProp<false, false>},
    {"plain_centered_rms_prop", 2, 5, RmsProp<true, false>},
};

}  // namespace

Result<const RuleKind*> FindRule(std::string_view name) {
  std::string names;
  for (const RuleKind& rule : kRules) {
    if (rule.name == name) return &rule;
    names += StrCat(names.empty() ? "" : ", ", rule.name);
  }
  return InvalidArgument(StrCat("update: there is no rule '", name, "'; the rules are ", names));
}

}  // namespace lockstep
