#include "core/embedding/pooling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/float16.h"
#include "core/testing/oracle.h"
#include "core/testing/parallel.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Values of any element type, seen as doubles.
class Values {
 public:
  Values(DType dtype, size_t count) : dtype_(dtype), count_(count), bytes_(count * DTypeSize(dtype), 0x7F) {}

  Values(DType dtype, const std::vector<double>& values) : Values(dtype, values.size()) {
    for (size_t i = 0; i < values.size(); ++i) {
      switch (dtype) {
        case DType::kFloat64: Put<double>(i, values[i]); break;
        case DType::kFloat16: Put<uint16_t>(i, FloatToFloat16(static_cast<float>(values[i]))); break;
        case DType::kBFloat16: Put<uint16_t>(i, FloatToBFloat16(static_cast<float>(values[i]))); break;
        default: Put<float>(i, static_cast<float>(values[i]));
      }
    }
  }

  double operator[](size_t i) const {
    switch (dtype_) {
      case DType::kFloat64: return Get<double>(i);
      case DType::kFloat16: return Float16ToFloat(Get<uint16_t>(i));
      case DType::kBFloat16: return BFloat16ToFloat(Get<uint16_t>(i));
      default: return Get<float>(i);
    }
  }

  size_t size() const { return count_; }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  template <typename T>
  void Put(size_t i, T value) {
    std::memcpy(bytes_.data() + i * sizeof(T), &value, sizeof(T));
  }
  template <typename T>
  T Get(size_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + i * sizeof(T), sizeof(T));
    return value;
  }

  DType dtype_;
  size_t count_;
  std::vector<char> bytes_;
};

// A lookup with random ids; some examples have none, and some rows no id.
struct Lookup {
  Lookup(DType dtype, Combiner combiner, int64_t dim, int64_t examples, bool weighted, std::mt19937& random)
      : weights(dtype == DType::kFloat64 ? dtype : DType::kFloat32, 0), rows(dtype, 0), gradient(dtype, 0) {
    std::normal_distribution<double> normal;
    splits.push_back(0);
    for (int64_t b = 0; b < examples; ++b) splits.push_back(splits.back() + (random() % 4 == 0 ? 0 : random() % 30));
    pooling.rows = 1 + random() % 50;
    for (int64_t i = 0; i < splits.back(); ++i) places.push_back(static_cast<int32_t>(random() % pooling.rows));
    const auto draw = [&](int64_t count) {
      std::vector<double> values(count);
      for (double& value : values) value = normal(random);
      return values;
    };
    rows = Values(dtype, draw(pooling.rows * dim));
    gradient = Values(dtype, draw(examples * dim));
    if (weighted) {
      std::vector<double> drawn = draw(splits.back());
      // An example whose weights are all 0 has a denominator of 0.
      const int64_t zeros = random() % examples;
      for (int64_t i = 0; i < splits.back(); ++i) {
        drawn[i] = i >= splits[zeros] && i < splits[zeros + 1] ? 0 : std::abs(drawn[i]) + 0.1;
      }
      weights = Values(dtype == DType::kFloat64 ? dtype : DType::kFloat32, drawn);
      pooling.weights = weights.data();
    }
    pooling.combiner = combiner;
    pooling.dtype = dtype;
    pooling.dim = dim;
    pooling.splits = splits;
    pooling.places = places;
  }

  double weight(int64_t i) const { return !pooling.weights ? 1 : weights[i]; }

  std::vector<double> Pooled() const {
    std::vector<double> pooled(pooling.examples() * pooling.dim, 0);
    ForEach([&](int64_t b, int64_t place, double factor) {
      for (int64_t d = 0; d < pooling.dim; ++d) {
        pooled[b * pooling.dim + d] += factor * rows[place * pooling.dim + d];
      }
    });
    return pooled;
  }

  std::vector<double> RowGradients() const {
    std::vector<double> sums(pooling.rows * pooling.dim, 0);
    ForEach([&](int64_t b, int64_t place, double factor) {
      for (int64_t d = 0; d < pooling.dim; ++d) {
        sums[place * pooling.dim + d] += factor * gradient[b * pooling.dim + d];
      }
    });
    return sums;
  }

  // Calls work(example, place, factor) for each id; the factor is what a row is multiplied by.
  template <typename Work>
  void ForEach(const Work& work) const {
    for (int64_t b = 0; b < pooling.examples(); ++b) {
      double denominator = 0;
      for (int64_t i = splits[b]; i < splits[b + 1]; ++i) {
        denominator += pooling.combiner == Combiner::kMean ? weight(i) : weight(i) * weight(i);
      }
      if (pooling.combiner == Combiner::kSqrtN) denominator = std::sqrt(denominator);
      if (pooling.combiner == Combiner::kSum) denominator = 1;
      for (int64_t i = splits[b]; i < splits[b + 1]; ++i) {
        work(b, places[i], denominator == 0 ? 0 : weight(i) / denominator);
      }
    }
  }

  std::vector<int64_t> splits;
  std::vector<int32_t> places;
  Values weights, rows, gradient;
  Pooling pooling;
};

double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return 1e-13;
    case DType::kFloat16: return 2e-3;
    case DType::kBFloat16: return 2e-2;
    default: return 1e-5;
  }
}

void ExpectNear(const Values& got, const std::vector<double>& wanted, double tolerance) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_NEAR(got[i], wanted[i], tolerance * (1 + std::abs(wanted[i]))) << "element " << i;
  }
}

using Parameters = std::tuple<DType, Combiner, bool>;
class PoolingOf : public ::testing::TestWithParam<Parameters> {};

// Several lookups of all widths at once, against sums in double. All instruction sets and numbers of threads give the
// same bits.
TEST_P(PoolingOf, EqualsSumsInDouble) {
  const auto [dtype, combiner, weighted] = GetParam();
  std::mt19937 random(7);
  std::vector<Lookup> lookups;
  for (int64_t dim : {1, 3, 4, 8, 16, 31, 32, 64, 100}) {
    lookups.emplace_back(dtype, combiner, dim, 1 + random() % 90, weighted, random);
  }
  testing::Pool threads(3);
  std::vector<std::vector<char>> first;
  for (const InstructionSet set : {InstructionSet::kBaseline, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (!IsSupported(set)) continue;
    for (const ParallelFor& parallel : {ParallelFor(RunInline), threads.Get()}) {
      std::vector<Values> pooled, row_gradients;
      std::vector<PoolRowsTask> tasks;
      std::vector<PoolGradientsTask> back;
      for (Lookup& lookup : lookups) {
        Pooling& own = lookup.pooling;
        own.splits = lookup.splits;  // the vectors have moved
        own.places = lookup.places;
        if (weighted) own.weights = lookup.weights.data();
        ASSERT_EQ(CheckPooling(own), OkStatus());
        pooled.emplace_back(dtype, own.examples() * own.dim);
        row_gradients.emplace_back(dtype, own.rows * own.dim);
        tasks.push_back({own, lookup.rows.data(), pooled.back().data()});
        back.push_back({own, lookup.gradient.data(), row_gradients.back().data()});
      }
      PoolRows(tasks, parallel, set);
      PoolGradients(back, parallel, set);
      std::vector<std::vector<char>> bytes;
      for (size_t l = 0; l < lookups.size(); ++l) {
        ExpectNear(pooled[l], lookups[l].Pooled(), Tolerance(dtype));
        ExpectNear(row_gradients[l], lookups[l].RowGradients(), Tolerance(dtype));
        bytes.push_back(pooled[l].bytes());
        bytes.push_back(row_gradients[l].bytes());
      }
      if (first.empty()) first = bytes;
      EXPECT_EQ(bytes, first);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, PoolingOf,
    ::testing::Combine(::testing::Values(DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16),
                       ::testing::Values(Combiner::kSum, Combiner::kMean, Combiner::kSqrtN), ::testing::Bool()));

// Row 0 is in most examples, several times in some.
TEST(PoolGradients, OfAFrequentRowAreAddedInBlocks) {
  constexpr int64_t kExamples = 700, kDim = 21;
  for (const bool weighted : {false, true}) {
    std::mt19937 random(weighted);
    std::normal_distribution<float> normal;
    std::vector<int64_t> splits = {0};
    std::vector<int32_t> places;
    std::vector<std::vector<std::pair<int64_t, float>>> ids_of(3);  // of each row: example and weight
    std::vector<float> weights, gradient(kExamples * kDim), sums(3 * kDim);
    for (int64_t b = 0; b < kExamples; ++b) {
      for (uint32_t ids = random() % 4; ids > 0; --ids) {
        places.push_back(random() % 4 == 0 ? 1 + static_cast<int32_t>(random() % 2) : 0);
        weights.push_back(weighted ? normal(random) : 1);
        ids_of[places.back()].emplace_back(b, weights.back());
      }
      splits.push_back(static_cast<int64_t>(places.size()));
    }
    for (float& value : gradient) value = normal(random);
    Pooling pooling;
    pooling.dim = kDim;
    pooling.rows = 3;
    pooling.splits = splits;
    pooling.places = places;
    if (weighted) pooling.weights = weights.data();
    const PoolGradientsTask task{pooling, gradient.data(), sums.data()};
    for (const InstructionSet set : {InstructionSet::kBaseline, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
      if (!IsSupported(set)) continue;
      PoolGradients({&task, 1}, RunInline, set);
      for (int64_t i = 0; i < 3 * kDim; ++i) {
        std::vector<float> terms;
        for (const auto& [b, weight] : ids_of[i / kDim]) terms.push_back(weight * gradient[b * kDim + i % kDim]);
        ASSERT_EQ(sums[i], testing::NaiveBlockSum(terms)) << "element " << i << " of " << terms.size() << " terms";
      }
    }
    EXPECT_GT(ids_of[0].size(), 700u);
  }
}

TEST(CheckPooling, NamesWhatDoesNotFit) {
  const std::vector<int64_t> splits = {0, 2, 2, 3};
  const std::vector<int32_t> places = {0, 4, 1};
  Pooling lookup;
  lookup.dim = 4;
  lookup.rows = 5;
  lookup.splits = splits;
  lookup.places = places;
  EXPECT_EQ(CheckPooling(lookup), OkStatus());
  lookup.rows = 4;
  EXPECT_THAT(CheckPooling(lookup).message(), HasSubstr("places[1] is 4, wanted one of 4 rows"));
  lookup.rows = 5;
  lookup.places = std::span(places).first(2);
  EXPECT_THAT(CheckPooling(lookup).message(),
              HasSubstr("begin with 0 and end with 3, wanted 0 and the number of ids, 2"));
  lookup.places = places;
  const std::vector<int64_t> falling = {0, 3, 2, 3};
  lookup.splits = falling;
  EXPECT_THAT(CheckPooling(lookup).message(), HasSubstr("splits[2] is 2 after 3"));
  lookup.splits = {};
  EXPECT_THAT(CheckPooling(lookup).message(), HasSubstr("got no splits"));
  lookup.splits = splits;
  lookup.dtype = DType::kInt32;
  EXPECT_THAT(CheckPooling(lookup).message(), HasSubstr("rows are int32"));
  const std::vector<int32_t> negative = {0, -1, 1};
  lookup.dtype = DType::kFloat32;
  lookup.places = negative;
  EXPECT_THAT(CheckPooling(lookup).message(), HasSubstr("places[1] is -1"));
}

TEST(SplitsOf, CountsTheIdsOfEachExample) {
  const std::vector<int64_t> indices = {0, 7, 0, 8, 3, 9};  // pairs; only the first of each counts
  std::vector<int64_t> splits(6, -1);
  EXPECT_EQ(SplitsOf(indices.data(), 2, 3, splits), OkStatus());
  EXPECT_THAT(splits, ElementsAre(0, 2, 2, 2, 3, 3));
  EXPECT_EQ(SplitsOf(nullptr, 2, 0, splits), OkStatus());
  EXPECT_THAT(splits, ElementsAre(0, 0, 0, 0, 0, 0));
  std::vector<int64_t> none(1, -1);
  EXPECT_EQ(SplitsOf(nullptr, 1, 0, none), OkStatus());
  EXPECT_THAT(none, ElementsAre(0));
}

TEST(SplitsOf, RefusesExamplesOutOfRangeOrOrder) {
  std::vector<int64_t> splits(4);
  for (const int64_t wrong : {-1, 3}) {
    EXPECT_THAT(SplitsOf(&wrong, 1, 1, splits).message(),
                HasSubstr("id 0 belongs to example " + std::to_string(wrong) + ", wanted one in [0, 3)"));
  }
  const std::vector<int64_t> unsorted = {0, 2, 1};
  EXPECT_THAT(SplitsOf(unsorted.data(), 1, 3, splits).message(),
              HasSubstr("id 2 belongs to example 1, but the id before it to example 2"));
}

TEST(FindCombiner, KnowsThree) {
  EXPECT_EQ(FindCombiner("sum"), Combiner::kSum);
  EXPECT_EQ(FindCombiner("mean"), Combiner::kMean);
  EXPECT_EQ(FindCombiner("sqrtn"), Combiner::kSqrtN);
  EXPECT_EQ(FindCombiner("max"), std::nullopt);
}

}  // namespace
}  // namespace lockstep
