#pragma once

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/bridge/convert.h"

// Defines an op that communicates. Every such op, in any folder of tf/, is defined through this macro: it makes the op
// stateful, so that nothing folds, merges or drops it, and gives it the attribute by which the pass in tf/graph knows
// that it has to be put in order. An op defined without it would run whenever it is ready, at another place among the
// collectives on each rank, and end in an error of disagreement or a wait.
//
// lockstep_priority: among collectives of a run that don't wait for each other, the one with the lower value goes
// first; the same on all ranks. Set by whoever builds the graph, 0 by default.
//
//   LOCKSTEP_COLLECTIVE_OP("LockstepBarrier").SetShapeFn(tf::shape_inference::NoOutputs);
#define LOCKSTEP_COLLECTIVE_OP(name) REGISTER_OP(name).SetIsStateful().Attr(LOCKSTEP_COLLECTIVE_ATTR ": int = 0")

// By the name of this attribute, and nothing else, an op counts as a collective (IsCollective).
#define LOCKSTEP_COLLECTIVE_ATTR "lockstep_priority"

// For ops that reduce; ReduceOpOf reads it. 'mean' is the sum divided by the number of ranks, for floating-point types
// alone.
#define LOCKSTEP_REDUCE_OP_ATTR "reduce_op: {'sum', 'mean', 'min', 'max', 'prod'} = 'sum'"
