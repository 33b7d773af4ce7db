#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace lockstep {

// A hyperparameter of an optimizer: its name, and the member of the optimizer's options that has its value. The header
// of each optimizer lists its hyperparameters once, in the order in which an update op has their values
// (tf/update/update_rules.h):
// ```cpp
// inline constexpr std::array kAdagradHyperparameters = {
//     Hyperparameter<AdagradOptions>::Of<&AdagradOptions::learning_rate>("learning_rate"),
//     Hyperparameter<AdagradOptions>::Of<&AdagradOptions::epsilon>("epsilon")};
// ```
template <typename Options>
struct Hyperparameter {
  std::string_view name;
  void (*set)(Options& options, float value);

  // Makes the hyperparameter of a member, which is a float or an optional one.
  template <auto kMember>
  static constexpr Hyperparameter Of(std::string_view name) {
    return {name, [](Options& options, float value) { options.*kMember = value; }};
  }
};

// Returns the names of a list of hyperparameters, in its order.
template <typename Options, size_t kCount>
constexpr std::array<std::string_view, kCount> NamesOf(const std::array<Hyperparameter<Options>, kCount>& list) {
  std::array<std::string_view, kCount> names;
  for (size_t i = 0; i < kCount; ++i) names[i] = list[i].name;
  return names;
}

}  // namespace lockstep
