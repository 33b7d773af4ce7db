#pragma once

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/bridge/convert.h"

// Defines an op that communicates. Every such op, in any folder of tf/, is defined through this macro. It makes the op
// stateful, so that TensorFlow does not fold, merge or drop it. It adds the attribute that tells the pass in tf/graph
// to order the op. Without it, the op would run as soon as it is ready, at another position among the collectives on
// each rank. It would end in a disagreement error or a hang.
//
// lockstep_priority: among independent collectives of a run, the lowest value goes first. It has to be the same on all
// ranks. The code that builds the graph sets it; the default is 0.
//
// lockstep_name: the name of an eager call, for errors, timelines and the comparison between ranks. Eager ops have no
// node's name. In a graph it stays empty, and the node's name counts.
// ```cpp
// LOCKSTEP_COLLECTIVE_OP("LockstepBarrier").SetShapeFn(tf::shape_inference::NoOutputs);
// ```
#define LOCKSTEP_COLLECTIVE_OP(name) \
  REGISTER_OP(name).SetIsStateful().Attr(LOCKSTEP_COLLECTIVE_ATTR ": int = 0").Attr(LOCKSTEP_NAME_ATTR ": string = ''")

// An op with this attribute counts as a collective (IsCollective); no other property matters.
#define LOCKSTEP_COLLECTIVE_ATTR "lockstep_priority"

#define LOCKSTEP_NAME_ATTR "lockstep_name"

// Attributes whose names begin with this are a rank's own: they are not compared between ranks.
#define LOCKSTEP_OWN_ATTRS "own_"

// Defines a collective whose arguments are all lists, with one place for each of its parts. So several nodes can become
// one node that does all their work in one exchange (tf/graph/grouping.h). Attributes are lists as well, with a value
// for each place, or belong to the whole node; "N" is the number of places.
//
// lockstep_group: whether the node may be joined with others. Local ops whose arguments are lists have it as well.
#define LOCKSTEP_GROUPED_COLLECTIVE_OP(name) LOCKSTEP_COLLECTIVE_OP(name).Attr(LOCKSTEP_GROUP_ATTR ": bool = true")

#define LOCKSTEP_GROUP_ATTR "lockstep_group"

// For ops that reduce; ReduceOpOf reads it. 'mean' is the sum divided by the number of ranks, for floating-point types
// only.
#define LOCKSTEP_REDUCE_OP_ATTR "reduce_op: {'sum', 'mean', 'min', 'max', 'prod'} = 'sum'"
