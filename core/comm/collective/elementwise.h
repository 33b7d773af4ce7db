#pragma once

#include <cstdint>

#include "core/base/dtype.h"
#include "core/comm/collective/communicator.h"

namespace lockstep {

// Sets out[i] = in[i] * factor for `count` elements of any type; bools are copied. As in TensorFlow, the factor is
// first converted to the elements' type. float16 and bfloat16 are multiplied as floats and rounded once. For integers
// the product of doubles is truncated and limited to the type's range. `out` may be `in`. A pure function; thread-safe.
void Scale(DType dtype, double factor, const void* in, int64_t count, void* out);

// Sets out[i] = in[i] / divisor, truncated for integers; bools do not change. divisor: not 0. `out` may be `in`.
void Divide(DType dtype, int64_t divisor, const void* in, int64_t count, void* out);

// Converts between types of integers; values beyond the range become its limit. `out` is not `in`.
void ConvertIntegers(DType from, const void* in, int64_t count, DType to, void* out);

// Fills `out` with the neutral element: 0 for a sum or mean, 1 for a product, infinity or the largest number for kMin,
// and the opposite for kMax.
void FillNeutral(ReduceOp op, DType dtype, int64_t count, void* out);

}  // namespace lockstep
