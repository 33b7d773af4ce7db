#pragma once

#include <cstdint>

#include "core/base/dtype.h"
#include "core/base/instruction_set.h"
#include "core/comm/collective/communicator.h"

namespace lockstep {

// The arithmetic of the reducing collectives, the same for every backend.
//
// A ReduceFunction sets out[i] = sources[0][i] op sources[1][i] op ... for `count` elements, always in that order and
// in one pass. So a result has the same bits wherever and in whichever pieces it is computed. Types float16 and
// bfloat16 accumulate in float and round once. Integers wrap. NaN wins against any number in kMin and kMax. `out` may
// be one of the sources. Pointers need only the alignment of their type.
//
// sources: [num_sources], at least one, each [count]. In a collective, source r is rank r's and num_sources is R, by
// which kMean divides. out: [count]. A pure function; thread-safe. Reads num_sources * count elements and writes count.
// ```cpp
// const ReduceFunction reduce = FindReduce(ReduceOp::kSum, DType::kFloat32);
// const void* sources[] = {a, b, c};
// reduce(sources, 3, count, out);
// ```
// All instruction sets give the same bits: no reduction has a multiplication and an addition that could be fused, and
// the lanes of a vector are elements, so that no sum is reordered.
using ReduceFunction = void (*)(const void* const* sources, int num_sources, int64_t count, void* out);

// Returns the function from a table, or null if `op` has no meaning for `dtype` (the mean of integers). A function for
// a set that the machine does not support would end in an illegal instruction.
ReduceFunction FindReduce(ReduceOp op, DType dtype, InstructionSet set = BestInstructionSet());

}  // namespace lockstep
