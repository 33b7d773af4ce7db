#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/status.h"
#include "tensorflow/core/graph/control_flow.h"
#include "tensorflow/core/graph/graph.h"

namespace lockstep {

// The parts of a graph's control flow that the pass needs: which nodes run together, and where loops are. When the pass
// runs, conditionals and loops have become these nodes:
//
//   Switch(data, pred)    data on output 0 or 1, by pred; the other output, and everything that depends on it, is dead
//   _SwitchN              the same with more outputs
//   Merge(a, b, ...)      the first input that is not dead
//   Enter, Exit           data into and out of a loop, which is a frame: a part of the graph that runs many times
//   NextIteration         data back to the loop's beginning; the only edges that close a circle
//
// A dead node is not an error: it does nothing, and makes the nodes after it dead. So an order edge from a node that
// may be dead would kill the waiting node; Conditions exist to prevent that.
//
// A condition for a node to run: `pred`, output `port` of a node, chose `branch`. Lowered conditionals and loops are
// Switch nodes, which send their data to one output only; nodes that depend on the other outputs are dead in this run.
// Equal conditions refer to the same output of the same node: two predicates that always agree are two conditions.
struct Condition {
  const tensorflow::Node* pred;
  int port;
  int branch;

  friend bool operator==(const Condition&, const Condition&) = default;
  // Compares node ids, so that the order does not depend on addresses.
  friend bool operator<(const Condition& a, const Condition& b) {
    return std::tuple(a.pred->id(), a.port, a.branch) < std::tuple(b.pred->id(), b.port, b.branch);
  }
};

// Conditions that all have to hold; sorted, so that sets can be compared, intersected and joined. Empty: the node
// always runs.
using Conditions = std::vector<Condition>;

// A graph's frames: the outermost, named "", and one for each while loop. Immutable. It refers to the graph's nodes by
// id, so it must not be asked about nodes that were added later.
class Frames {
 public:
  // Returns the frames. INVALID_ARGUMENT with TensorFlow's message if the graph's loops are not well-formed.
  static Result<Frames> Of(const tensorflow::Graph& graph);

  // Returns whether the node existed when the frames were made.
  bool Knows(const tensorflow::Node& node) const { return static_cast<size_t>(node.id()) < info_.size(); }

  // Returns the innermost frame of a node. A loop's Enter and Exit nodes are inside of it.
  const std::string& frame_of(const tensorflow::Node& node) const { return info_[node.id()].frame_name; }

  // Returns the frame that lies directly in `frame` and contains `node`: `frame` itself for its own nodes, null for
  // nodes outside of it.
  const std::string* ChildOf(const std::string& frame, const tensorflow::Node& node) const;

 private:
  std::vector<tensorflow::ControlFlowInfo> info_;  // by node id
  std::map<std::string, std::string> parent_;      // by frame, without the outermost
};

// How many marked vertices lie on the way to a vertex: first the collectives, then the local operations since the last
// of them. Every path counts, and the largest level is the vertex's.
struct Level {
  int collectives = 0;
  int local = 0;

  friend auto operator<=>(const Level&, const Level&) = default;
};

// How a vertex counts for the levels of those that depend on it.
enum class Step : uint8_t { kNone, kLocal, kCollective };

// Returns the level behind a vertex that has a level and counts as `step`.
inline Level After(const Level& level, Step step) {
  switch (step) {
    case Step::kCollective: return {level.collectives + 1, 0};
    case Step::kLocal: return {level.collectives, level.local + 1};
    case Step::kNone: break;
  }
  return level;
}

// One frame of a graph, in which every loop that lies directly in it is one vertex. It describes the graph at the time
// when the view was made; edges may be added later. Without the loops' inner circles a frame is a graph without
// circles, so order, levels and conditions take one pass each. Nodes that `frames` does not know are left out: the pass
// has added them to loops beside this one.
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
    std::vector<tensorflow::Node*> entries{};  // nodes that have to wait so that the whole vertex waits
    std::vector<tensorflow::Node*> exits{};    // nodes that have to end so that the vertex has ended
    Conditions conditions{};                   // conditions for it to run
    Level level{};                             // see SetLevels
  };

  // Returns the view of a frame. INTERNAL if the graph has a cycle outside of its loops.
  static Result<FrameView> Of(const tensorflow::Graph& graph, const Frames& frames, const std::string& frame);

  // Returns the vertices in the order in which the graph lists their nodes, which may differ between ranks.
  std::vector<Vertex>& vertices() { return vertices_; }

  // Returns the conditions under which output `port` of a node of this frame has a value. These are the vertex's
  // conditions, plus the branch for an output of a Switch. For Graph::kControlSlot, TensorFlow's number of a control
  // edge's output, returns the conditions under which the node runs.
  Conditions ConditionsOf(const tensorflow::Node& node, int port) const;

  // Sets each vertex's level; steps: how each vertex counts.
  void SetLevels(const std::vector<Step>& steps);

 private:
  // Returns the vertex where `edge` begins. Returns no value if that is not another vertex of this view, or the edge is
  // a loop's back edge.
  std::optional<int> SourceOf(const tensorflow::Edge& edge) const;
  // Fills order_, by Kahn's algorithm.
  Status Sort();
  // Sets every vertex's conditions, in this order.
  void SetConditions();

  std::vector<Vertex> vertices_;
  std::vector<std::optional<int>> vertex_of_;          // by node id; no value outside of the frame
  std::vector<std::vector<tensorflow::Node*>> nodes_;  // by vertex
  std::vector<int> order_;                             // the vertices, each after those that it depends on
};

}  // namespace lockstep
