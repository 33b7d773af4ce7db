#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"

namespace lockstep::testing {

// Tensors as tests see them, and their reduction in the plainest way: element by element, through double arithmetic,
// with conversions of its own. Shares no code with what it judges, but for the size and kind of a type (base/dtype.h).
//
// A tensor is a string of bytes here: `count` elements of a type, one after another, in the machine's byte order. All
// are functions without state; thread-safe. Slow: large tensors are better judged by
// a formula.
//
//   const std::string a = RandomTensor(DType::kFloat16, 100, 1), b = RandomTensor(DType::kFloat16, 100, 2);
//   EXPECT_EQ(FirstDifference(DType::kFloat16, Got(a, b), NaiveReduce("sum", DType::kFloat16, {a, b})), "");
//
// The bytes of `count` random elements, the same for the same seed: floating-point numbers within [-2, 2) and, one time
// in 64, an extreme one (zero of either sign, infinity, NaN, close to the limits of a format); integers over the whole
// range of their type, so that sums overflow; bools that are 0 or 1.
std::string RandomTensor(DType dtype, int64_t count, uint64_t seed);

// out[i] = tensors[0][i] op tensors[1][i] op ..., in that order. `op` is "sum", "mean", "min", "max" or "product"; at
// least one tensor, all of one length. The rules are those of ReduceFunction (comm/collective/reduce.h): 16-bit formats
// accumulate in float and are rounded once, integers wrap, NaN wins; on bool, sum and max are "or", product and min are
// "and".
std::string NaiveReduce(std::string_view op, DType dtype, const std::vector<std::string>& tensors);

// "" if all elements are equal bit for bit, except that any NaN equals any other; else where they first differ, as
// "element 3 is 1.5, wanted 2", or that the lengths do. Zeros of different signs differ.
std::string FirstDifference(DType dtype, std::string_view got, std::string_view wanted);

}  // namespace lockstep::testing
