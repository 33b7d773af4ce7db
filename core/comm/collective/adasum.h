#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"

namespace lockstep {

// The adaptive sum of all ranks' tensors: what points in different directions is added, what points in the same
// direction is averaged (Maleki et al., "Scaling Distributed Training with Adaptive Summation", arXiv 2006.02924;
// Horovod's op=Adasum). Of two tensors it is
//
//   Adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b
//
// which is a + b where they are orthogonal and (a + b) / 2 where they are parallel. Of R tensors, neighbours are
// combined in rounds, from rank 0 on:
//
//   R = 4:  Adasum(Adasum(t0, t1), Adasum(t2, t3))
//   R = 6:  Adasum(Adasum(Adasum(t0, t1), Adasum(t2, t3)), Adasum(t4, t5))
//   R = 3:  Adasum(Adasum(t0, t1), t2)
//
// What finds no neighbour in a round goes to the next one as it is. So where R is no power of two, the last ranks'
// tensors go through fewer rounds and weigh more where tensors are parallel: of three equally long ones the third
// counts as much as the other two together. For R = 1 it is the tensor itself. Nothing is divided by R.
//
// Each tensor of a list has dot products and coefficients of its own, and its result depends on nothing but its own
// elements on all ranks: a list's results are bit for bit those of its tensors one by one, so what is fused with what
// may differ from step to step. All ranks get the same bits, in every run of the same build.
//
// Dot products, norms and coefficients are computed in double. Elements stay in their type between the rounds, but
// those of float16 and bfloat16, which are kept in float and rounded once, at the end. Where a tensor is zero, or so
// small that its squared norm is below the smallest normal double, the other one comes out as it is. An infinity or a
// NaN on one of several ranks makes all elements of that tensor, and of no other, NaN on all ranks.
//
// counts_of_tensors: elements of each tensor of the list, the same on all ranks; some may be 0. in, out: [sum of
// counts_of_tensors], the tensors one behind the other; `in` may be `out`, and lies best in a SharedBuffer of
// `communicator`, where the exchange reads it in place. dtype: float16, bfloat16, float32 or float64.
//
//   const int64_t counts[] = {kernel.size(), bias.size()};
//   LOCKSTEP_RETURN_IF_ERROR(AdasumAllReduce(communicator, "layer", DType::kFloat32, counts, gradients, gradients));
//
// A collective of 2 + log2 R (rounded up) exchanges, all under one name: `name` with the counts behind it, as that is
// how ranks with other counts are found. Every rank sends and receives 2 (R-1)/R of the list's bytes and a little more
// for the dot products (docs/algorithms.md). It takes as much memory as `in` has for the time of the call, and three
// times as much of a 16-bit type.
//
// INVALID_ARGUMENT, before anything is exchanged, for a type without fractions, a negative count, and a null pointer to
// elements; FAILED_PRECONDITION, on all ranks, where they disagree about name, type or counts; RESOURCE_EXHAUSTED, on
// all ranks, where one has no memory for it; otherwise the communicator's errors. Threads: as for the communicator's
// collectives, and the whole of it counts as one.
Status AdasumAllReduce(Communicator& communicator, std::string_view name, DType dtype,
                       std::span<const int64_t> counts_of_tensors, const void* in, void* out);

}  // namespace lockstep
