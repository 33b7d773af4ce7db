#include "core/embedding/optimizer/update.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/base/float16.h"
#include "core/embedding/optimizer/adagrad.h"
#include "core/embedding/optimizer/adam.h"
#include "core/embedding/optimizer/ftrl.h"
#include "core/embedding/optimizer/momentum.h"
#include "core/embedding/optimizer/rms_prop.h"
#include "core/embedding/optimizer/sgd.h"
#include "core/testing/oracle.h"
#include "core/testing/parallel.h"

namespace lockstep {
namespace {

// TensorFlow's update of one element in double precision, by the documentation of tf.raw_ops.ResourceSparseApply...
// and, where noted, by Keras' source.
using Oracle = std::function<void(double& w, std::vector<double>& s, double g)>;

struct Case {
  std::string name;
  std::function<Result<UpdateRule>(DType, InstructionSet)> rule;
  std::vector<double> initial;  // of the slots
  Oracle oracle;
};

double Sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

Case MomentumCase(bool keras, bool nesterov) {
  const MomentumOptions options{0.05f, 0.8f, nesterov, keras};
  return {std::string(keras ? "KerasMomentum" : "Momentum") + (nesterov ? "Nesterov" : ""),
          [=](DType type, InstructionSet set) { return options.Rule(type, set); },
          {0},
          [=](double& w, std::vector<double>& s, double g) {
            const double lr = 0.05f, momentum = 0.8f;
            s[0] = keras ? s[0] * momentum - lr * g : s[0] * momentum + g;
            if (keras) {
              w += nesterov ? s[0] * momentum - lr * g : s[0];
            } else {
              w -= nesterov ? g * lr + s[0] * momentum * lr : s[0] * lr;
            }
          }};
}

Case AdagradCase(AdagradOptions::Epsilon place, float epsilon) {
  const AdagradOptions options{0.1f, epsilon, place};
  const bool inside = place == AdagradOptions::Epsilon::kInside;
  return {std::string("Adagrad") + (inside         ? "Inside"
                                    : epsilon == 0 ? "V1"
                                                   : "V2"),
          [=](DType type, InstructionSet set) { return options.Rule(type, set); },
          {0.1f},
          [=](double& w, std::vector<double>& s, double g) {
            s[0] += g * g;
            w -= 0.1f * g / (inside ? std::sqrt(s[0] + epsilon) : std::sqrt(s[0]) + epsilon);
          }};
}

Case FtrlCase(const std::string& name, const FtrlOptions& options) {
  return {name,
          [=](DType type, InstructionSet set) { return options.Rule(type, set); },
          {0.1f, 0},
          [=](double& w, std::vector<double>& s, double g) {
            const double lr = options.learning_rate, p = options.learning_rate_power;
            const double shrunk = g + 2 * options.l2_shrinkage * w, accumulated = s[0] + g * g;
            s[1] += shrunk - (std::pow(accumulated, -p) - std::pow(s[0], -p)) / lr * w;
            const double quadratic = std::pow(accumulated, -p) / lr + 2 * options.l2;
            w = std::abs(s[1]) > options.l1 ? (Sign(s[1]) * options.l1 - s[1]) / quadratic : 0;
            s[0] = accumulated;
          }};
}

Case RmsPropCase(bool centered, bool has_momentum) {
  RmsPropOptions options{0.01f, 0.9f, 0.5f, 1e-3f, centered};
  options.has_momentum = has_momentum;
  std::vector<double> initial(options.num_slots(), 0);
  initial[0] = 1;
  return {std::string(centered ? "Centered" : "") + "RmsProp" + (has_momentum ? "" : "WithoutMomentum"),
          [=](DType type, InstructionSet set) { return options.Rule(type, set); }, initial,
          [=](double& w, std::vector<double>& s, double g) {
            const double rho = 0.9f;
            s[0] = rho * s[0] + (1 - rho) * g * g;
            double divisor = s[0] + 1e-3f;
            if (centered) {
              s.back() = rho * s.back() + (1 - rho) * g;
              divisor -= s.back() * s.back();
            }
            const double step = 0.01f * g / std::sqrt(divisor);
            if (has_momentum) s[1] = 0.5 * s[1] + step;
            w -= has_momentum ? s[1] : step;
          }};
}

Case AdamCase() {
  const AdamOptions options{0.02f, 0.9f, 0.99f, 1e-5f, std::pow(0.9f, 3.0f), std::pow(0.99f, 3.0f)};
  return {"Adam",
          [=](DType type, InstructionSet set) { return options.Rule(type, set); },
          {0, 0},
          [=](double& w, std::vector<double>& s, double g) {
            const double b1 = options.beta1, b2 = options.beta2;
            s[0] = b1 * s[0] + (1 - b1) * g;
            s[1] = b2 * s[1] + (1 - b2) * g * g;
            const double lr = 0.02f * std::sqrt(1.0 - options.beta2_power) / (1.0 - options.beta1_power);
            w -= lr * s[0] / (std::sqrt(s[1]) + 1e-5f);
          }};
}

std::vector<Case> Cases() {
  std::vector<Case> cases = {{"Sgd",
                              [](DType type, InstructionSet set) { return SgdOptions{0.1f}.Rule(type, set); },
                              {},
                              [](double& w, std::vector<double>&, double g) { w -= 0.1f * g; }}};
  for (const bool keras : {false, true}) {
    for (const bool nesterov : {false, true}) cases.push_back(MomentumCase(keras, nesterov));
  }
  cases.push_back(AdagradCase(AdagradOptions::Epsilon::kOutside, 0));
  cases.push_back(AdagradCase(AdagradOptions::Epsilon::kOutside, 1e-2f));
  cases.push_back(AdagradCase(AdagradOptions::Epsilon::kInside, 1e-2f));
  cases.push_back(AdamCase());
  cases.push_back(FtrlCase("Ftrl", {.learning_rate = 0.1f, .l1 = 0.05f, .l2 = 0.1f}));
  cases.push_back(FtrlCase("FtrlShrinkage", {.learning_rate = 0.1f, .l1 = 0.01f, .l2_shrinkage = 0.1f}));
  cases.push_back(FtrlCase("FtrlPower", {.learning_rate = 0.1f, .learning_rate_power = -0.7f, .l1 = 0.05f}));
  for (const bool centered : {false, true}) {
    for (const bool has_momentum : {false, true}) cases.push_back(RmsPropCase(centered, has_momentum));
  }
  return cases;
}

// A contiguous table with its slots.
struct Table {
  Table(int64_t rows, int64_t dim, const std::vector<double>& initial, uint64_t seed) : dim(dim), weights(rows * dim) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (float& weight : weights) weight = normal(random);
    for (const double value : initial) slots.emplace_back(rows * dim, static_cast<float>(value));
  }

  UpdateTarget Target() {
    UpdateTarget target{RowView::Contiguous(weights.data(), dim * 4), {}, dim};
    for (size_t s = 0; s < slots.size(); ++s) target.slots[s] = RowView::Contiguous(slots[s].data(), dim * 4);
    return target;
  }

  int64_t dim;
  std::vector<float> weights;
  std::vector<std::vector<float>> slots;
};

struct Gradients {
  std::vector<uint32_t> numbers;
  std::vector<float> values;
};

// Returns gradients of `count` positions; some rows occur often, some positions have no row.
Gradients RandomGradients(int64_t count, int64_t rows, int64_t dim, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Gradients gradients;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bound = 1 + random() % rows;
    gradients.numbers.push_back(random() % 10 == 0 ? kNoRow : static_cast<uint32_t>(random() % bound));
  }
  for (int64_t i = 0; i < count * dim; ++i) gradients.values.push_back(normal(random));
  return gradients;
}

class UpdateTest : public ::testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override {
    if (!IsSupported(GetParam())) GTEST_SKIP() << "this processor has no " << InstructionSetName(GetParam());
  }
};

// Allows for some roundings of float32, each of a number that may be several times as large as the result. FTRL's sums
// pass through numbers some tens of times as large as their results, and round like those.
double Tolerance(double value) { return 3e-5 * std::max(1.0, std::abs(value)); }

TEST_P(UpdateTest, IsTensorFlows) {
  testing::Pool pool(2);
  for (const Case& c : Cases()) {
    for (const int64_t dim : {1, 7, 16, 35}) {
      constexpr int64_t kRows = 50;
      Table table(kRows, dim, c.initial, dim);
      std::vector<double> weights(table.weights.begin(), table.weights.end());
      std::vector<std::vector<double>> state(weights.size(), c.initial);
      for (int step = 0; step < 4; ++step) {
        const Gradients gradients = RandomGradients(80, kRows, dim, step);
        std::map<uint32_t, std::vector<double>> sums;
        for (size_t i = 0; i < gradients.numbers.size(); ++i) {
          auto& sum = sums.try_emplace(gradients.numbers[i], dim, 0.0).first->second;
          for (int64_t d = 0; d < dim; ++d) sum[d] += gradients.values[i * dim + d];
        }
        sums.erase(kNoRow);
        for (const auto& [row, sum] : sums) {
          for (int64_t d = 0; d < dim; ++d) c.oracle(weights[row * dim + d], state[row * dim + d], sum[d]);
        }
        const UpdateRule rule = *c.rule(DType::kFloat32, GetParam());
        ASSERT_EQ(rule.num_slots, static_cast<int>(c.initial.size()));
        ApplyUpdate(table.Target(), rule, gradients.numbers, gradients.values.data(), pool.Get());
      }
      for (size_t i = 0; i < weights.size(); ++i) {
        ASSERT_NEAR(table.weights[i], weights[i], Tolerance(weights[i])) << c.name << " " << i;
        for (size_t s = 0; s < c.initial.size(); ++s) {
          ASSERT_NEAR(table.slots[s][i], state[i][s], Tolerance(state[i][s])) << c.name;
        }
      }
    }
  }
}

// The result has the same bits as on one thread with baseline instructions; there are many parts and long runs of one
// row.
TEST_P(UpdateTest, HasTheSameBitsEverywhere) {
  testing::Pool pool(3);
  for (const Case& c : Cases()) {
    for (const int64_t dim : {5, 16}) {
      constexpr int64_t kRows = 3000;
      const Gradients gradients = RandomGradients(20000, kRows, dim, 11);
      Table one(kRows, dim, c.initial, 1), many = one;
      ApplyUpdate(one.Target(), *c.rule(DType::kFloat32, InstructionSet::kBaseline), gradients.numbers,
                  gradients.values.data(), RunInline);
      ApplyUpdate(many.Target(), *c.rule(DType::kFloat32, GetParam()), gradients.numbers, gradients.values.data(),
                  pool.Get());
      ASSERT_EQ(one.weights, many.weights) << c.name;
      ASSERT_EQ(one.slots, many.slots) << c.name;
    }
  }
}

// A row's weight is the negative sum of its gradients here.
TEST_P(UpdateTest, GradientsOfAFrequentRowAreAddedInBlocks) {
  constexpr int64_t kRows = 3, kDim = 18, kPositions = 2000;
  const Gradients gradients = RandomGradients(kPositions, kRows, kDim, 3);
  std::vector<float> weights(kRows * kDim, 0);
  const UpdateTarget target{RowView::Contiguous(weights.data(), kDim * 4), {}, kDim};
  ApplyUpdate(target, *SgdOptions{1.0f}.Rule(DType::kFloat32, GetParam()), gradients.numbers, gradients.values.data(),
              RunInline);
  for (int64_t i = 0; i < kRows * kDim; ++i) {
    std::vector<float> terms;
    for (int64_t p = 0; p < kPositions; ++p) {
      if (gradients.numbers[p] == i / kDim) terms.push_back(gradients.values[p * kDim + i % kDim]);
    }
    ASSERT_EQ(weights[i], -testing::NaiveBlockSum(terms)) << "element " << i << " of " << terms.size() << " terms";
    EXPECT_TRUE(i >= kDim || terms.size() > 1000) << "row 0 is frequent";
  }
}

// 16-bit rows: each weight becomes one of its two neighbours in the format; the mean is the result of float32.
TEST_P(UpdateTest, RoundsStochastically) {
  constexpr int64_t kRows = 4000, kDim = 19;
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    const auto load = [&](uint16_t bits) {
      return type == DType::kFloat16 ? Float16ToFloat(bits) : BFloat16ToFloat(bits);
    };
    const auto store = [&](float x) { return type == DType::kFloat16 ? FloatToFloat16(x) : FloatToBFloat16(x); };
    for (const float weight : {1.0f, -0.3f, 3e-5f, 60000.0f, 0.0f}) {
      for (const float change : {1e-4f, 0.37f}) {
        std::vector<uint16_t> rows(kRows * kDim, store(weight));
        const float start = load(rows[0]), wanted = start - change * std::max(std::abs(start), 1e-6f);
        std::vector<uint32_t> numbers(kRows);
        for (int64_t i = 0; i < kRows; ++i) numbers[i] = static_cast<uint32_t>(i);
        const std::vector<float> gradients(kRows * kDim, start - wanted);
        const UpdateTarget target{RowView::Contiguous(rows.data(), kDim * 2), {}, kDim, nullptr, 77};
        ApplyDistinctUpdate(target, *SgdOptions{1}.Rule(type, GetParam()), numbers, gradients.data(), RunInline);
        const float result = start - (start - wanted);
        double mean = 0;
        float least = INFINITY, most = -INFINITY;
        for (const uint16_t bits : rows) {
          mean += load(bits) / static_cast<double>(rows.size());
          least = std::min(least, load(bits));
          most = std::max(most, load(bits));
        }
        ASSERT_LE(least, result);
        ASSERT_GE(most, result);
        // The two are neighbours, or equal: no value lies between them.
        ASSERT_TRUE(least == most || store((least + most) / 2) == store(least) ||
                    store((least + most) / 2) == store(most));
        ASSERT_NEAR(mean, result, (most - least) * 0.01 + 1e-12) << DTypeName(type) << " " << weight << " " << change;
        if (result == load(store(result))) {
          ASSERT_EQ(least, most) << "what has a place of its own is not rounded";
        }
      }
    }
  }
}

// Random bits come from the key: a row in another place is rounded equally, and the next step's seed rounds
// differently.
TEST_P(UpdateTest, RoundingIsAFunctionOfKeyAndStep) {
  constexpr int64_t kDim = 32;
  const auto updated = [&](std::vector<int64_t> keys, uint64_t rounding) {
    std::vector<uint16_t> rows(keys.size() * kDim, FloatToBFloat16(1));
    const RowView key_view = RowView::Contiguous(keys.data(), 8);
    std::vector<uint32_t> numbers;
    for (size_t i = 0; i < keys.size(); ++i) numbers.push_back(static_cast<uint32_t>(i));
    const std::vector<float> gradients(rows.size(), 1e-3f);
    ApplyUpdate({RowView::Contiguous(rows.data(), kDim * 2), {}, kDim, &key_view, rounding},
                *SgdOptions{1}.Rule(DType::kBFloat16, GetParam()), numbers, gradients.data(), RunInline);
    std::map<int64_t, std::vector<uint16_t>> by_key;
    for (size_t i = 0; i < keys.size(); ++i) {
      by_key[keys[i]] = {rows.begin() + i * kDim, rows.begin() + (i + 1) * kDim};
    }
    return by_key;
  };
  EXPECT_EQ(updated({5, -9, 1000, 12}, 1), updated({12, 1000, 5, -9}, 1));
  EXPECT_NE(updated({5}, 1), updated({5}, 2));
  EXPECT_NE(updated({5, 6}, 1)[5], updated({5, 6}, 1)[6]);
}

// tf.compat.v1.train.AdamOptimizer with sparse gradients: rows without a gradient decay and move.
TEST_P(UpdateTest, ZeroGradientsMoveTheOtherRows) {
  constexpr int64_t kRows = 40, kDim = 16;
  testing::Pool pool(2);
  const Case adam = AdamCase();
  Table table(kRows, kDim, adam.initial, 1);
  std::vector<double> weights(table.weights.begin(), table.weights.end());
  std::vector<std::vector<double>> state(weights.size(), adam.initial);
  for (int step = 0; step < 5; ++step) {
    Gradients gradients = RandomGradients(20, kRows, kDim, step);
    std::vector<double> dense(weights.size(), 0);
    std::vector<uint8_t> skip(kRows, 0);
    for (size_t i = 0; i < gradients.numbers.size(); ++i) {
      if (gradients.numbers[i] == kNoRow) continue;
      skip[gradients.numbers[i]] = 1;
      for (int64_t d = 0; d < kDim; ++d) dense[gradients.numbers[i] * kDim + d] += gradients.values[i * kDim + d];
    }
    for (size_t i = 0; i < weights.size(); ++i) adam.oracle(weights[i], state[i], dense[i]);
    const UpdateRule rule = *adam.rule(DType::kFloat32, GetParam());
    ApplyUpdate(table.Target(), rule, gradients.numbers, gradients.values.data(), pool.Get());
    ApplyZeroGradients(table.Target(), rule, kRows, skip, pool.Get());
  }
  for (size_t i = 0; i < weights.size(); ++i) ASSERT_NEAR(table.weights[i], weights[i], 4e-6);
}

// Updates tables of all rules, dimensions and sizes at once, some with all of their rows; the oracle updates them one
// by one.
TEST_P(UpdateTest, SeveralTablesAreUpdatedAsOneByOne) {
  testing::Pool pool(3);
  for (const int64_t most : {5, 30000}) {
    std::vector<Table> alone;
    std::vector<Gradients> gradients;
    std::vector<UpdateRule> rules;
    std::mt19937_64 random(most);
    for (const Case& c : Cases()) {
      const auto rows = static_cast<int64_t>(1 + random() % 3000), dim = static_cast<int64_t>(1 + random() % 20);
      alone.emplace_back(rows, dim, c.initial, random());
      gradients.push_back(RandomGradients(static_cast<int64_t>(random() % (1 + random() % most)), rows, dim, random()));
      rules.push_back(*c.rule(DType::kFloat32, GetParam()));
    }
    std::vector<Table> together = alone;
    std::vector<TableUpdate> updates;
    for (size_t t = 0; t < alone.size(); ++t) {
      const int64_t rows = t % 2 == 0 ? 0 : static_cast<int64_t>(alone[t].weights.size()) / alone[t].dim;
      updates.push_back({together[t].Target(), rules[t], gradients[t].numbers, gradients[t].values.data(), rows});
      ApplyUpdate(alone[t].Target(), rules[t], gradients[t].numbers, gradients[t].values.data(), RunInline);
      std::vector<uint8_t> skip(rows, 0);
      for (const uint32_t number : gradients[t].numbers) {
        if (number != kNoRow && rows > 0) skip[number] = 1;
      }
      ApplyZeroGradients(alone[t].Target(), rules[t], rows, skip, RunInline);
    }
    ApplyUpdates(updates, pool.Get());
    for (size_t t = 0; t < alone.size(); ++t) {
      ASSERT_EQ(alone[t].weights, together[t].weights) << t;
      ASSERT_EQ(alone[t].slots, together[t].slots) << t;
    }
  }
  ApplyUpdates({}, pool.Get());
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, UpdateTest,
                         ::testing::Values(InstructionSet::kBaseline, InstructionSet::kAvx2, InstructionSet::kAvx512),
                         [](const auto& info) { return std::string(InstructionSetName(info.param)); });

TEST(Update, RulesAreChecked) {
  EXPECT_EQ((SgdOptions{INFINITY}).Rule(DType::kFloat32).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((SgdOptions{1}).Rule(DType::kInt32).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((FtrlOptions{.learning_rate_power = 0.5f}).Rule(DType::kFloat32).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ((AdamOptions{.beta1_power = 1}).Rule(DType::kFloat32).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((AdagradOptions{.epsilon = NAN}).Rule(DType::kFloat32).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep
