#pragma once

#include "core/base/status.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/graph/graph.h"

namespace lockstep {

// Joins the nodes of a run that can be one. They have the same op with the attribute lockstep_group
// (tf/comm/collective_op.h), do not depend on each other, and run under the same conditions. So the lookups of any
// number of tables cost one exchange of ids, one of rows and one of gradients. Their rows are pooled in one pass
// (tf/lookup/pooling_ops.cc), and their optimizers step in one pass (tf/update/update_ops.cc):
//
//   ids a --> Route --> Gather --> Combine --> rows a        ids a --> Route --> Gather --> Combine --> rows a
//   ids b --> Route --> Gather --> Combine --> rows b        ids b -->       --> Gather -->         --> rows b
//
// Grouping follows from the data that ranks have in common (names, attributes, dependencies), so all ranks make the
// same groups. The members of a group are in the order of their keys (collective_nodes.h). Its name is made of the
// first member's name, their number and a fingerprint of all. A session keeps kernels by name, and a run that fetches
// fewer tables has another group.
//
// A node whose attribute lockstep_group is false is not changed. If no two nodes fit, nothing changes. It is called
// with the graph of one run, before the collectives are ordered. After an error the graph may be partly changed.
Status GroupCollectives(tensorflow::Graph* graph, const tensorflow::FunctionLibraryDefinition* library);

}  // namespace lockstep
