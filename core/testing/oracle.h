#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"

namespace lockstep::testing {

// Tensors in the form of tests, and their reduction in the simplest way: element by element, in double arithmetic, with
// conversions of its own. It shares no code with the code under test, except for a type's size and kind (base/dtype.h).
//
// A tensor is a string of bytes here: `count` elements of a type, one after another, in the machine's byte order. All
// functions have no state and are thread-safe. They are slow: check large tensors by a formula.
// ```cpp
// const std::string a = RandomTensor(DType::kFloat16, 100, 1), b = RandomTensor(DType::kFloat16, 100, 2);
// EXPECT_EQ(FirstDifference(DType::kFloat16, Got(a, b), NaiveReduce("sum", DType::kFloat16, {a, b})), "");
// ```
// RandomTensor returns the bytes of `count` random elements, equal for equal seeds. Floating-point numbers are within
// [-2, 2) and, one time in 64, extreme (zero of either sign, infinity, NaN, close to the limits of a format). Integers
// cover the whole range of their type, so that sums overflow. Bools are 0 or 1.
std::string RandomTensor(DType dtype, int64_t count, uint64_t seed);

// Returns out[i] = tensors[0][i] op tensors[1][i] op ..., in that order. `op` is "sum", "mean", "min", "max" or
// "product". There is at least one tensor, and all have one length. The rules are ReduceFunction's
// (comm/collective/reduce.h): 16-bit formats accumulate in float and are rounded once, integers wrap, and NaN wins. For
// bool, sum and max are "or", product and min are "and".
std::string NaiveReduce(std::string_view op, DType dtype, const std::vector<std::string>& tensors);

// Returns the sum of floats as the gradients of a row are added: blocks of 256 terms, each in order, and the sums of
// the blocks in order. There is at least one term.
float NaiveBlockSum(const std::vector<float>& terms);

// Returns "" if all elements are equal bit for bit, or both NaN. Otherwise it names the first difference, as "element 3
// is 1.5, wanted 2", or different lengths. Zeros of different signs differ.
std::string FirstDifference(DType dtype, std::string_view got, std::string_view wanted);

}  // namespace lockstep::testing
