#include "core/embedding/optimizer/hyperparameters.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/embedding/optimizer/adagrad.h"
#include "core/embedding/optimizer/adam.h"
#include "core/embedding/optimizer/ftrl.h"
#include "core/embedding/optimizer/momentum.h"
#include "core/embedding/optimizer/rms_prop.h"
#include "core/embedding/optimizer/sgd.h"

namespace lockstep {
namespace {

// Returns options in which the hyperparameters of a list are 1, 2 and so on, in its order.
template <typename Options, size_t kCount>
Options Numbered(const std::array<Hyperparameter<Options>, kCount>& list) {
  Options options;
  for (size_t i = 0; i < kCount; ++i) list[i].set(options, static_cast<float>(i + 1));
  return options;
}

template <typename Options, size_t kCount>
std::vector<std::string> Names(const std::array<Hyperparameter<Options>, kCount>& list) {
  const auto names = NamesOf(list);
  return {names.begin(), names.end()};
}

TEST(Hyperparameters, SetTheMembersOfTheirNames) {
  EXPECT_EQ(Numbered(kSgdHyperparameters).learning_rate, 1);
  const MomentumOptions momentum = Numbered(kMomentumHyperparameters);
  EXPECT_EQ((std::vector{momentum.learning_rate, momentum.momentum}), (std::vector<float>{1, 2}));
  const AdagradOptions adagrad = Numbered(kAdagradHyperparameters);
  EXPECT_EQ((std::vector{adagrad.learning_rate, adagrad.epsilon}), (std::vector<float>{1, 2}));
  const FtrlOptions ftrl = Numbered(kFtrlHyperparameters);
  EXPECT_EQ((std::vector{ftrl.learning_rate, ftrl.learning_rate_power, ftrl.l1, ftrl.l2, ftrl.l2_shrinkage}),
            (std::vector<float>{1, 2, 3, 4, 5}));
  const AdamOptions adam = Numbered(kPreciseAdamHyperparameters);
  EXPECT_EQ((std::vector{adam.learning_rate, adam.beta1, adam.beta2, adam.epsilon, adam.beta1_power, adam.beta2_power,
                         *adam.one_minus_beta1, *adam.one_minus_beta2}),
            (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}));
  const RmsPropOptions rms_prop = Numbered(kRmsPropHyperparameters);
  EXPECT_EQ(
      (std::vector{rms_prop.learning_rate, rms_prop.rho, rms_prop.momentum, rms_prop.epsilon, *rms_prop.one_minus_rho}),
      (std::vector<float>{1, 2, 3, 4, 5}));
  const RmsPropOptions plain = Numbered(kPlainRmsPropHyperparameters);
  EXPECT_EQ((std::vector{plain.learning_rate, plain.rho, plain.epsilon, *plain.one_minus_rho}),
            (std::vector<float>{1, 2, 3, 4}));
}

TEST(Hyperparameters, AreListedInTheOrderOfTheOperation) {
  const std::vector<std::string> adam = {"learning_rate", "beta1", "beta2", "epsilon", "beta1_power", "beta2_power"};
  EXPECT_EQ(Names(kAdamHyperparameters), adam);
  EXPECT_FALSE(Numbered(kAdamHyperparameters).one_minus_beta1.has_value());
  EXPECT_EQ(Names(kRmsPropHyperparameters),
            (std::vector<std::string>{"learning_rate", "rho", "momentum", "epsilon", "one_minus_rho"}));
}

}  // namespace
}  // namespace lockstep
