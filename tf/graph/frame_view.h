#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/status.h"
#include "tensorflow/core/graph/control_flow.h"
#include "tensorflow/core/graph/graph.h"

namespace lockstep {

// What the pass has to know of a graph's control flow: which nodes run together, and where loops are. By the time the
// pass runs, conditionals and loops are no more than these nodes:
//
//   Switch(data, pred)    data on output 0 or 1, by pred; the other output, and all that depends on it, is dead
//   _SwitchN              the same with more outputs
//   Merge(a, b, ...)      the first input that is not dead
//   Enter, Exit           data into and out of a loop, which is a frame: a part of the graph that runs many times
//   NextIteration         data back to the loop's beginning; the only edges that close a circle
//
// A dead node is not an error: it runs as nothing, and makes what follows it dead. So an order edge from a node that
// may be dead would kill what waits for it, which is what Conditions are there to prevent.
//
// What has to hold for a node to run: that `pred`, output `port` of a node, chose `branch`. Lowered conditionals and
// loops are Switch nodes, which send their data to one output only; what depends on the others is dead in this run.
// Equal conditions stem from the same output of the same node: two predicates that always agree are two conditions.
struct Condition {
  const tensorflow::Node* pred;
  int port;
  int branch;

  friend bool operator==(const Condition&, const Condition&) = default;
  // By node id, so that the order does not depend on addresses.
  friend bool operator<(const Condition& a, const Condition& b) {
    return std::tuple(a.pred->id(), a.port, a.branch) < std::tuple(b.pred->id(), b.port, b.branch);
  }
};

// All of these have to hold; sorted, so that sets can be compared, cut and joined. Empty: the node always runs.
using Conditions = std::vector<Condition>;

// A graph's frames: the outermost, named "", and one for each while loop. Immutable; refers to the graph's nodes by id,
// so it must not be asked about nodes that were added since, which it doesn't know.
class Frames {
 public:
  // INVALID_ARGUMENT where the graph's loops are not well-formed, in TensorFlow's words.
  static Result<Frames> Of(const tensorflow::Graph& graph);

  // Whether the node was there when the frames were made.
  bool Knows(const tensorflow::Node& node) const { return static_cast<size_t>(node.id()) < info_.size(); }

  // The innermost frame that a node is in. A loop's Enter nodes are inside of it; so are its Exit nodes.
  const std::string& frame_of(const tensorflow::Node& node) const { return info_[node.id()].frame_name; }

  // The frame between `frame` and the one of `node` that lies directly in `frame`: `frame` itself for its own nodes,
  // null for nodes that are not inside.
  const std::string* ChildOf(const std::string& frame, const tensorflow::Node& node) const;

 private:
  std::vector<tensorflow::ControlFlowInfo> info_;  // by node id
  std::map<std::string, std::string> parent_;      // of each frame but the outermost
};

// One frame of a graph with every loop that lies directly in it taken as one vertex. What it tells refers to the graph
// as it was when the view was made; edges may be added since. Without the loops' inner circles a frame is a graph
// without circles, which is what makes order, levels and conditions computable in one pass each. Nodes that `frames`
// doesn't know are left out: what the pass has put into loops beside this one.
//
//   outermost frame:   a ---> [loop: Enter ... body ... Exit] ---> b        three vertices
//   the loop's frame:  Enter, Merge, LoopCond, Switch, body ..., NextIteration, Exit: a vertex each
//
// Thread-compatible. The graph must outlive it.
class FrameView {
 public:
  // A node, or a whole loop.
  struct Vertex {
    tensorflow::Node* node = nullptr;          // null for a loop
    const std::string* loop = nullptr;         // the loop's frame
    std::vector<tensorflow::Node*> entries{};  // what has to wait so that the whole vertex waits
    std::vector<tensorflow::Node*> exits{};    // what has to end so that the whole vertex has ended
    Conditions conditions{};                   // for it to run
    int level = 0;                             // see SetLevels
  };

  // INTERNAL where the graph has a circle outside of its loops.
  static Result<FrameView> Of(const tensorflow::Graph& graph, const Frames& frames, const std::string& frame);

  // In the order in which the graph lists their nodes, which ranks need not share.
  std::vector<Vertex>& vertices() { return vertices_; }

  // The conditions under which output `port` of a node of this frame has a value; -1: under which the node runs. Those
  // of the vertex, and for the output of a Switch its branch.
  Conditions ConditionsOf(const tensorflow::Node& node, int port) const;

  // Sets each vertex's level: the largest number of vertices, of those that `counts` marks, on any way to it.
  void SetLevels(const std::vector<bool>& counts);

 private:
  // The vertex where `edge` begins; -1 if that is no other vertex of this view, or a loop's way back.
  int SourceOf(const tensorflow::Edge& edge) const;
  // Fills order_, by Kahn's algorithm.
  Status Sort();
  // Sets every vertex's conditions, in that order.
  void SetConditions();

  std::vector<Vertex> vertices_;
  std::vector<int> vertex_of_;                         // by node id; -1 outside of the frame
  std::vector<std::vector<tensorflow::Node*>> nodes_;  // of each vertex
  std::vector<int> order_;                             // the vertices, each behind those that it depends on
};

}  // namespace lockstep
