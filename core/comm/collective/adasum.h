#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"

namespace lockstep {

// Computes the adaptive sum of all ranks' tensors: it adds parts in different directions, and averages parts in the
// same direction. (Maleki et al., "Scaling Distributed Training with Adaptive Summation", arXiv 2006.02924; Horovod's
// op=Adasum.) For two tensors it is
//
//   Adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b
//
// This is a + b if they are orthogonal, and (a + b) / 2 if they are parallel. With R tensors, neighbours are combined
// in rounds, beginning with rank 0:
//
//   R = 4:  Adasum(Adasum(t0, t1), Adasum(t2, t3))
//   R = 6:  Adasum(Adasum(Adasum(t0, t1), Adasum(t2, t3)), Adasum(t4, t5))
//   R = 3:  Adasum(Adasum(t0, t1), t2)
//
// A tensor without a neighbour in a round goes to the next round unchanged. So if R is not a power of two, the last
// ranks' tensors go through fewer rounds and weigh more if the tensors are parallel. With three equal ones, the third
// counts as much as the other two together. For R = 1 the result is the tensor itself. The result is not divided by R.
//
// Each tensor of a list has its own dot products and coefficients, and its result depends only on its own elements on
// all ranks. A list's results equal the results of its tensors one by one, bit for bit, so the fusion of tensors may
// differ from step to step. All ranks get the same bits, in every run of the same build.
//
// Dot products, norms and coefficients are computed in double. Between the rounds, elements stay in their type, except
// that float16 and bfloat16 are kept in float and rounded once at the end. If a tensor is zero, or its squared norm is
// below the smallest normal double, the other tensor comes out unchanged. An infinity or a NaN on one of several ranks
// makes all elements of only that tensor NaN on all ranks.
//
// counts_of_tensors: the elements of each tensor of the list, equal on all ranks; some may be 0. in, out: [sum of
// counts_of_tensors], the tensors one after another. `in` may be `out`; it is best in a SharedBuffer of `communicator`,
// where the exchange reads it in place. dtype: float16, bfloat16, float32 or float64.
// ```cpp
// const int64_t counts[] = {kernel.size(), bias.size()};
// LOCKSTEP_RETURN_IF_ERROR(AdasumAllReduce(communicator, "layer", DType::kFloat32, counts, gradients, gradients));
// ```
// It is a collective of 2 + log2 R (rounded up) exchanges with one name: `name` and the counts, by which ranks with
// other counts are found. Every rank sends and receives 2 (R-1)/R of the list's bytes, and a little more for the dot
// products (docs/algorithms.md). During the call it takes as much memory as `in`, and three times as much for a 16-bit
// type.
//
// INVALID_ARGUMENT, before anything is exchanged, for a type without fractions, a negative count, or a null pointer to
// elements. FAILED_PRECONDITION on all ranks if they disagree about name, type or counts. RESOURCE_EXHAUSTED on all
// ranks if one has no memory for it. Otherwise the communicator's errors. Threads: like the communicator's collectives;
// the whole call counts as one.
Status AdasumAllReduce(Communicator& communicator, std::string_view name, DType dtype,
                       std::span<const int64_t> counts_of_tensors, const void* in, void* out);

}  // namespace lockstep
