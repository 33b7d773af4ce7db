// A frame as a graph without circles. Every node in this frame is a vertex of its own; a node inside a loop, at any
// depth, belongs to the vertex of the loop that lies directly in this frame. Edges inside of a vertex and a loop's back
// edge are left out (SourceOf). The rest is sorted once, and levels and conditions follow from the vertices before.
//
// Later edges count only between nodes that the view knows. The pass adds control edges along the order, which change
// no condition that it asks for later, and its own nodes, which are ignored.
#include "tf/graph/frame_view.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tf/bridge/convert.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// The sets are sorted, as all Conditions are.
Conditions Union(const Conditions& a, const Conditions& b) {
  Conditions result;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(result));
  return result;
}

Conditions Intersection(const Conditions& a, const Conditions& b) {
  Conditions result;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(result));
  return result;
}

}  // namespace

Result<Frames> Frames::Of(const tf::Graph& graph) {
  Frames frames;
  std::vector<std::string> unreachable;  // they stay in the outermost frame, because no edge leads to them
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(tf::BuildControlFlowInfo(&graph, &frames.info_, &unreachable)));
  for (const tf::Node* node : graph.op_nodes()) {
    const tf::ControlFlowInfo& info = frames.info_[node->id()];
    if (!info.frame_name.empty()) {
      frames.parent_[info.frame_name] = frames.info_[info.parent_frame->id()].frame_name;
    }
  }
  return frames;
}

const std::string* Frames::ChildOf(const std::string& frame, const tf::Node& node) const {
  // Walks up from the node's frame until the parent is `frame`.
  const std::string* name = &frame_of(node);
  if (*name == frame) return name;
  for (auto found = parent_.find(*name); found != parent_.end(); found = parent_.find(*name)) {
    if (found->second == frame) return name;
    name = &found->second;
  }
  return nullptr;
}

Result<FrameView> FrameView::Of(const tf::Graph& graph, const Frames& frames, const std::string& frame) {
  FrameView view;
  view.vertex_of_.resize(graph.num_node_ids());
  std::map<std::string, int> loops;
  for (tf::Node* node : graph.op_nodes()) {
    const std::string* const child = frames.Knows(*node) ? frames.ChildOf(frame, *node) : nullptr;
    if (child == nullptr) continue;
    int index = static_cast<int>(view.vertices_.size());
    if (*child != frame) index = loops.try_emplace(*child, index).first->second;
    if (index == static_cast<int>(view.vertices_.size())) {
      view.vertices_.emplace_back();
      view.nodes_.emplace_back();
    }
    Vertex& vertex = view.vertices_[index];
    view.vertex_of_[node->id()] = index;
    view.nodes_[index].push_back(node);
    if (*child == frame) {
      vertex.node = node;
      vertex.entries = vertex.exits = {node};
    } else {
      vertex.loop = child;
      // The loop's own entries and exits; entries and exits of nested loops lie deeper.
      if (frames.frame_of(*node) == *child && node->IsEnter()) vertex.entries.push_back(node);
      if (frames.frame_of(*node) == *child && node->IsExit()) vertex.exits.push_back(node);
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(view.Sort());
  view.SetConditions();
  return view;
}

std::optional<int> FrameView::SourceOf(const tf::Edge& edge) const {
  // Nodes that the pass has added since then have higher ids than all known ones.
  const bool is_new = static_cast<size_t>(edge.src()->id()) >= vertex_of_.size();
  if (is_new || edge.src()->IsNextIteration()) return std::nullopt;
  const std::optional<int> source = vertex_of_[edge.src()->id()];
  return source == vertex_of_[edge.dst()->id()] ? std::nullopt : source;
}

// Kahn's algorithm: a vertex comes after all vertices with an edge to it. Multiple edges count on both sides.
Status FrameView::Sort() {
  const int count = static_cast<int>(vertices_.size());
  std::vector<std::vector<int>> followers(count);
  std::vector<int> waits(count, 0);
  for (int v = 0; v < count; ++v) {
    for (const tf::Node* node : nodes_[v]) {
      for (const tf::Edge* edge : node->in_edges()) {
        const std::optional<int> source = SourceOf(*edge);
        if (!source) continue;
        followers[*source].push_back(v);
        ++waits[v];
      }
    }
  }
  for (int v = 0; v < count; ++v) {
    if (waits[v] == 0) order_.push_back(v);
  }
  for (size_t i = 0; i < order_.size(); ++i) {
    for (const int follower : followers[order_[i]]) {
      if (--waits[follower] == 0) order_.push_back(follower);
    }
  }
  if (static_cast<int>(order_.size()) == count) return OkStatus();
  const auto stuck = std::find_if(waits.begin(), waits.end(), [](int w) { return w > 0; });
  return Internal(absl::StrCat("the graph has a cycle outside of its loops, at or before node '",
                               nodes_[stuck - waits.begin()][0]->name(), "'"));
}

// A node runs if all its inputs run, so it has all their conditions. Only a Merge runs as soon as one input does: its
// conditions are those that its data inputs have in common. It waits for its control inputs, but runs also if they are
// dead. (TensorFlow lets the Merge behind a conditional wait for the assertions of both branches.)
// ```
// pred ---> Switch --0--> a --.
//                `--1--> b ---+--> Merge        a: {pred is 0}   b: {pred is 1}   Merge: {}, and Switch's
// ```
// A Merge of branches of different predicates gets too few conditions rather than too many, and so may count as running
// while it is dead. But TensorFlow builds a Merge only to close the branches of one Switch.
void FrameView::SetConditions() {
  for (const int v : order_) {
    Conditions& conditions = vertices_[v].conditions;
    const bool is_merge = vertices_[v].node != nullptr && vertices_[v].node->IsMerge();
    bool is_first = true;
    for (const tf::Node* node : nodes_[v]) {
      for (const tf::Edge* edge : node->in_edges()) {
        if (!SourceOf(*edge)) continue;
        // A control edge's output is Graph::kControlSlot.
        const Conditions given = ConditionsOf(*edge->src(), edge->src_output());
        if (!is_merge) {
          conditions = Union(conditions, given);
        } else if (!edge->IsControlEdge()) {
          conditions = is_first ? given : Intersection(conditions, given);
          is_first = false;
        }
      }
    }
  }
}

// Only the data outputs of a Switch have a branch: a node that waits for it by a control edge runs for either branch. A
// loop's outputs have the conditions of the loop.
Conditions FrameView::ConditionsOf(const tf::Node& node, int port) const {
  const Vertex& vertex = vertices_[*vertex_of_[node.id()]];
  const tf::Edge* pred = nullptr;
  const bool is_branch =
      vertex.node != nullptr && node.IsSwitch() && port != tf::Graph::kControlSlot && node.input_edge(1, &pred).ok();
  if (!is_branch) return vertex.conditions;
  return Union(vertex.conditions, {{pred->src(), pred->src_output(), port}});
}

// The longest path, by the vertices in order; a level does not count the vertex itself.
void FrameView::SetLevels(const std::vector<Step>& steps) {
  for (const int v : order_) {
    Level& level = vertices_[v].level;
    for (const tf::Node* node : nodes_[v]) {
      for (const tf::Edge* edge : node->in_edges()) {
        const std::optional<int> source = SourceOf(*edge);
        if (source) level = std::max(level, After(vertices_[*source].level, steps[*source]));
      }
    }
  }
}

}  // namespace lockstep
