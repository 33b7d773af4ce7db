#include "core/comm/collective/reduce.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "core/testing/oracle.h"

namespace lockstep {
namespace {

using testing::FirstDifference;
using testing::NaiveReduce;
using testing::RandomTensor;

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

// Compares each instruction set with the oracle, and so with each other.
class ReduceTest : public ::testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override {
    if (!IsSupported(GetParam())) GTEST_SKIP() << "this processor has no " << InstructionSetName(GetParam());
  }
};

// Lengths up to 1000: whole blocks of 256 elements and a rest. The loop treats 1 and 2 sources specially; there are
// more, too. The seed is printed; it draws the same numbers on every machine.
TEST_P(ReduceTest, EqualsTheNaiveReductionBitForBit) {
  const uint64_t seed = 20240917;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int d = 0; d < kDTypeCount; ++d) {
    const DType dtype = static_cast<DType>(d);
    for (ReduceOp op : kOps) {
      const ReduceFunction reduce = FindReduce(op, dtype, GetParam());
      if (reduce == nullptr) continue;
      for (int sources : {1, 2, 3, 8}) {
        const int64_t count = static_cast<int64_t>(random() % 1000);
        std::vector<std::string> tensors;
        std::vector<const void*> pointers;
        for (int s = 0; s < sources; ++s) tensors.push_back(RandomTensor(dtype, count, random()));
        for (const std::string& tensor : tensors) pointers.push_back(tensor.data());
        std::string got(tensors[0].size(), 'x');
        reduce(pointers.data(), sources, count, got.data());
        ASSERT_EQ(FirstDifference(dtype, got, NaiveReduce(ReduceOpName(op), dtype, tensors)), "")
            << ReduceOpName(op) << " of " << DTypeName(dtype) << ", " << sources << " sources, " << count
            << " elements";
      }
    }
  }
}

TEST_P(ReduceTest, TheResultMayReplaceAnySource) {
  for (int target = 0; target < 3; ++target) {
    std::vector<std::string> tensors;
    for (int s = 0; s < 3; ++s) tensors.push_back(RandomTensor(DType::kFloat32, 777, s + 1));
    const std::string wanted = NaiveReduce("sum", DType::kFloat32, tensors);
    const void* pointers[] = {tensors[0].data(), tensors[1].data(), tensors[2].data()};
    FindReduce(ReduceOp::kSum, DType::kFloat32, GetParam())(pointers, 3, 777, tensors[target].data());
    EXPECT_EQ(FirstDifference(DType::kFloat32, tensors[target], wanted), "") << "into source " << target;
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, ReduceTest,
                         ::testing::Values(InstructionSet::kBaseline, InstructionSet::kAvx2, InstructionSet::kAvx512),
                         [](const auto& info) { return std::string(InstructionSetName(info.param)); });

TEST(ReduceFindTest, OnlyTheMeanOfWholeNumbersIsUndefined) {
  for (int d = 0; d < kDTypeCount; ++d) {
    const DType dtype = static_cast<DType>(d);
    for (ReduceOp op : kOps) {
      EXPECT_EQ(FindReduce(op, dtype) == nullptr, op == ReduceOp::kMean && !IsFloatingPoint(dtype)) << DTypeName(dtype);
    }
  }
}

TEST(ReduceFindTest, SixteenBitFloatsAreRoundedOnce) {
  // 1 + 2^-11 + 2^-11 in float16: if it were rounded after each step, it would stay 1.
  const uint16_t a = 0x3c00, b = 0x1000;
  const void* sources[] = {&a, &b, &b};
  uint16_t out = 0;
  FindReduce(ReduceOp::kSum, DType::kFloat16)(sources, 3, 1, &out);
  EXPECT_EQ(out, 0x3c01);
}

}  // namespace
}  // namespace lockstep
