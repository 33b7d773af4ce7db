#pragma once

#include "core/base/status.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/graph/graph.h"

namespace lockstep {

// Makes one node of those of a run that can be one: nodes of one op with the attribute lockstep_group, as
// LOCKSTEP_GROUPED_COLLECTIVE_OP defines them (tf/comm/collective_op.h), that don't depend on each other, and that run
// under the same conditions. So the lookups of all tables cost one exchange of ids, one of rows and one of gradients,
// whatever their number, and their optimizers' steps are one pass over all rows (tf/embedding/update_ops.cc):
//
//   ids a --> Route --> Gather --> Combine --> rows a        ids a --> Route --> Gather --> Combine --> rows a
//   ids b --> Route --> Gather --> Combine --> rows b        ids b -->       --> Gather -->         --> rows b
//
// Which nodes become one follows from what ranks have in common (names, attributes, dependencies), so that all ranks
// make the same groups. A group has its members in the order of their keys (collective_nodes.h), and a name made of the
// first one's, their number and a fingerprint of all: a session keeps kernels by name, and a run that fetches fewer
// tables has another group.
//
// A node whose attribute lockstep_group is false stays as it is. Changes nothing where no two nodes fit. Called with
// the graph of one run, before its collectives are put in order. After an error the graph may be half changed.
Status GroupCollectives(tensorflow::Graph* graph, const tensorflow::FunctionLibraryDefinition* library);

}  // namespace lockstep
