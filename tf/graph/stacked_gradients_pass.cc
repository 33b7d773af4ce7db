// Lets gradients of lookups be read where they are, inside the gradient of a stack.
//
// A model stacks the vectors of its features, [B, D] each, to [B, F, D]: the products of pairs of DLRM need them so. On
// the way back, Unpack copies the slices of the stack's gradient. LockstepCombineGradient reads the copies.
//
//   before   gradient [B, F, D] --> Unpack --> [B, D], F times --> LockstepCombineGradient
//   after    gradient [B, F, D], F times --> LockstepCombineGradient, with `slices` 0 to F - 1
//
// The pass knows no shapes. So the kernel takes slices along dimension 1 for ids of any number of dimensions. That of a
// scalar id, whose row [D] was stacked to [D, F], lies in pieces; the kernel copies it.
//
// The pass runs in POST_REWRITE_FOR_EXEC, after nodes have been grouped and the ranks' list of collectives was made: so
// what a rank reads where does not matter to the others.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/hash.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/graph.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// Returns whether a node cuts its input along dimension 1.
bool IsUnstack(const tf::Node& node) {
  int axis = 0;
  return node.type_string() == "Unpack" && tf::TryGetNodeAttr(node.attrs(), "axis", &axis) && axis == 1;
}

// Makes the lookups of a LockstepCombineGradient read from stacks, where they have some.
absl::Status ReadStacks(tf::Graph* graph, tf::Node* node) {
  std::vector<std::string> rows_of;
  TF_RETURN_IF_ERROR(tf::GetNodeAttr(node->attrs(), "rows_of", &rows_of));
  std::vector<int64_t> slices(rows_of.size(), -1);
  std::set<tf::Node*> unstacks, controls;
  for (size_t i = 0; i < slices.size(); ++i) {
    const tf::Edge* edge = nullptr;
    TF_RETURN_IF_ERROR(node->input_edge(static_cast<int>(i), &edge));
    tf::Node* const unstack = edge->src();
    if (rows_of[i] != "ids" || !IsUnstack(*unstack)) continue;
    const tf::Edge* stack = nullptr;
    TF_RETURN_IF_ERROR(unstack->input_edge(0, &stack));
    slices[i] = edge->src_output();
    unstacks.insert(unstack);
    // Graph::UpdateEdge would also write the name of the input into the node's definition, which has none if passes
    // made the node.
    graph->RemoveEdge(edge);
    graph->AddEdge(stack->src(), stack->src_output(), node, static_cast<int>(i));
    // The reader waits for everything that the copies wait for.
    for (const tf::Edge* before : unstack->in_edges()) {
      if (before->IsControlEdge() && !before->src()->IsSource()) controls.emplace(before->src());
    }
  }
  for (tf::Node* before : controls) graph->AddControlEdge(before, node);
  if (unstacks.empty()) return absl::OkStatus();
  node->ClearAttr("slices");
  node->AddAttr("slices", slices);
  // A session keeps kernels by name, and another run may read other places. Names of collectives end before the number.
  node->set_name(absl::StrCat(node->name(), "_", Fingerprint(absl::StrJoin(slices, ","))));
  for (tf::Node* unstack : unstacks) {
    const auto& out = unstack->out_edges();
    const bool unused = std::all_of(out.begin(), out.end(), [](const tf::Edge* edge) { return edge->dst()->IsSink(); });
    if (unused) graph->RemoveNode(unstack);
  }
  return absl::OkStatus();
}

class StackedGradientsPass : public tf::GraphOptimizationPass {
 public:
  absl::Status Run(const tf::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr) return absl::OkStatus();
    tf::Graph* const graph = options.graph->get();
    std::vector<tf::Node*> nodes;
    for (tf::Node* node : graph->op_nodes()) {
      if (node->type_string() == "LockstepCombineGradient") nodes.push_back(node);
    }
    for (tf::Node* node : nodes) TF_RETURN_IF_ERROR(ReadStacks(graph, node));
    return absl::OkStatus();
  }
};

// Phase 0 has the order pass.
REGISTER_OPTIMIZATION(tf::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 1, StackedGradientsPass);

}  // namespace
}  // namespace lockstep
