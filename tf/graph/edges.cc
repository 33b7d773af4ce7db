#include "tf/graph/edges.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// The node at the other end of an edge, the index there, and the index at this node.
struct End {
  tf::Node* node;
  int place;
  int own;
};

}  // namespace

void TakePlace(tf::Graph* graph, tf::Node* node, tf::Node* other, const std::vector<int>& inputs,
               const std::vector<int>& outputs) {
  // An input takes one edge, so the node's edges are removed before the other one gets them.
  std::vector<End> in, out;
  for (const tf::Edge* e : node->in_edges()) in.push_back({e->src(), e->src_output(), e->dst_input()});
  for (const tf::Edge* e : node->out_edges()) out.push_back({e->dst(), e->dst_input(), e->src_output()});
  graph->RemoveNode(node);
  for (const End& from : in) {
    if (from.own == tf::Graph::kControlSlot) {
      graph->AddControlEdge(from.node, other);
    } else {
      graph->AddEdge(from.node, from.place, other, inputs[from.own]);
    }
  }
  for (const End& to : out) {
    if (to.own == tf::Graph::kControlSlot) {
      graph->AddControlEdge(other, to.node);
    } else {
      graph->AddEdge(other, outputs[to.own], to.node, to.place);
    }
  }
}

}  // namespace lockstep
