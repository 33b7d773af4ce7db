#pragma once

#include <cstdint>

#include "core/base/dtype.h"
#include "core/comm/collective/communicator.h"

namespace lockstep {

// out[i] = in[i] * factor, for `count` elements of any type but bool, whose values are copied. As in TensorFlow the
// factor becomes a number of the elements' type first; float16 and bfloat16 are multiplied as floats and rounded once;
// of integers the product of doubles is cut off, and ends with the type's range. `out` may be `in`. A pure function;
// thread-safe.
void Scale(DType dtype, double factor, const void* in, int64_t count, void* out);

// out[i] = in[i] / divisor, of integers cut off; bools are left alone. divisor: not 0. `out` may be `in`.
void Divide(DType dtype, int64_t divisor, const void* in, int64_t count, void* out);

// out[i] = in[i], of one type of integers and then of another; what is beyond its range becomes its end. `out` is not
// `in`.
void ConvertIntegers(DType from, const void* in, int64_t count, DType to, void* out);

// Fills `out` with what changes nothing: 0 of a sum or mean, 1 of a product, infinity or the largest number of kMin,
// and the other end of kMax.
void FillNeutral(ReduceOp op, DType dtype, int64_t count, void* out);

}  // namespace lockstep
