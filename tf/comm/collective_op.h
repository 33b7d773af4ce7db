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

// Defines a collective every argument of which is a list, with one place for each of the things that it does: so that
// several nodes can be made one, which does in one exchange what each of them did (tf/graph/grouping.h). Attributes are
// lists as well, with a value for each place, or belong to the node as a whole; "N" is the number of places.
//
// lockstep_group: whether the node may be made one with others.
#define LOCKSTEP_GROUPED_COLLECTIVE_OP(name) LOCKSTEP_COLLECTIVE_OP(name).Attr(LOCKSTEP_GROUP_ATTR ": bool = true")

#define LOCKSTEP_GROUP_ATTR "lockstep_group"

// For ops that reduce; ReduceOpOf reads it. 'mean' is the sum divided by the number of ranks, for floating-point types
// alone.
#define LOCKSTEP_REDUCE_OP_ATTR "reduce_op: {'sum', 'mean', 'min', 'max', 'prod'} = 'sum'"
