#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"

namespace lockstep::testing {

// Tensors as tests see them, and their reduction in the plainest way: element by element, through double arithmetic,
// with conversions of its own. Shares no code with what it judges.

// The bytes of `count` random elements, the same for the same seed: numbers around zero, now and then an extreme one,
// infinity or NaN.
std::string RandomTensor(DType dtype, int64_t count, uint64_t seed);

// out[i] = tensors[0][i] op tensors[1][i] op ..., in that order. `op` is "sum", "mean", "min", "max" or "product".
std::string NaiveReduce(std::string_view op, DType dtype, const std::vector<std::string>& tensors);

// "" if all elements are equal bit for bit, except that any NaN equals any other; else where they first differ.
std::string FirstDifference(DType dtype, std::string_view got, std::string_view wanted);

}  // namespace lockstep::testing
