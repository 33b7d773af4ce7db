#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/status.h"
#include "tensorflow/core/graph/control_flow.h"
#include "tensorflow/core/graph/graph.h"

namespace lockstep {

// What has to hold for a node to run: that `pred`, output `port` of a node, chose `branch`. Lowered conditionals and
// loops are Switch nodes, which send their data to one output only; what depends on the others is dead in this run.
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

// All of these have to hold; sorted. Empty: the node always runs.
using Conditions = std::vector<Condition>;

// A graph's frames: the outermost, named "", and one for each while loop.
class Frames {
 public:
  static Result<Frames> Of(const tensorflow::Graph& graph);

  const std::string& frame_of(const tensorflow::Node& node) const { return info_[node.id()].frame_name; }

  // The frame between `frame` and the one of `node` that lies directly in `frame`: `frame` itself for its own nodes,
  // null for nodes that are not inside.
  const std::string* ChildOf(const std::string& frame, const tensorflow::Node& node) const;

 private:
  std::vector<tensorflow::ControlFlowInfo> info_;  // by node id
  std::map<std::string, std::string> parent_;      // of each frame but the outermost
};

// One frame of a graph with every loop that lies directly in it taken as one vertex. What it tells refers to the graph
// as it was when the view was made; edges may be added since.
class FrameView {
 public:
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

  std::vector<Vertex>& vertices() { return vertices_; }

  // The conditions under which output `port` of a node of this frame has a value; -1: under which the node runs.
  Conditions ConditionsOf(const tensorflow::Node& node, int port) const;

  // Sets each vertex's level: the largest number of vertices, of those that `counts` marks, on any way to it.
  void SetLevels(const std::vector<bool>& counts);

 private:
  // The vertex where `edge` begins; -1 if that is no other vertex of this view, or a loop's way back.
  int SourceOf(const tensorflow::Edge& edge) const;
  Status Sort();
  void SetConditions();

  std::vector<Vertex> vertices_;
  std::vector<int> vertex_of_;                         // by node id; -1 outside of the frame
  std::vector<std::vector<tensorflow::Node*>> nodes_;  // of each vertex
  std::vector<int> order_;                             // the vertices, each behind those that it depends on
};

}  // namespace lockstep
