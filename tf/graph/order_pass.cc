// Puts the collectives of a run into one order, the same on every rank.
//
// Ranks build the same collectives. But TensorFlow runs a node as soon as it is ready, and a rank may run other nodes
// beside them (the chief writes summaries). So the order is computed from data that ranks have in common: a
// collective's level, which is the number of collectives on the longest path to it, then its priority and its name.
// Control edges chain the collectives in this order: each waits only for the one before, so that the rest of the graph
// overlaps with them. Levels come first, because no order may contradict the graph's own. A collective that depends on
// another has a higher level, so the chain closes no circle.
//
// The pass runs in POST_REWRITE_FOR_EXEC. It sees the graph of one run signature after pruning, inlining and Grappler,
// for sessions and functions alike.
//
// Control flow consists of Switch, Merge and loop frames by then (frame_view.h):
// - A node in a branch that is not taken is dead, with all nodes that depend on it. Therefore a collective never waits
//   directly for a collective with conditions that it does not have itself. Instead it waits for a join, built here: a
//   Merge of that collective's end and of the other branches. A join does not order the collectives before a branch
//   that is not taken. So the chain reaches back to the next collective that runs whenever this one does.
// - A loop is one link of the chain around it: all its Enter nodes wait, and the next link waits for all its Exit
//   nodes. Its body has a chain of its own, and its iterations run one at a time.
//   - A call of a function with collectives is one link too; the function's graph has its own pass.
//
//   a (always), b (if p), c (always):    a ------------> b ---> join ---> c        and a ---> c
//                                              p not taken ------^
//
// Before the first collective stands a LockstepRunCheck, which compares the list with the other ranks' lists
// (run_check_op.cc).
//
// The cost is a few passes over the graph, once for each run signature. At run time there are the control edges, and
// the check's search in a set.
#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/comm/job/run_agreement.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/node_builder.h"
#include "tf/bridge/convert.h"
#include "tf/graph/collective_nodes.h"
#include "tf/graph/frame_view.h"
#include "tf/graph/grouping.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// A link of a chain: a collective, a call, or a whole loop. Chains are sorted by operator<, which except for ties
// compares only data that is equal on all ranks.
struct Link {
  int level = 0;
  OrderKey key{};
  std::vector<tf::Node*> entries{};
  std::vector<tf::Node*> exits{};
  Conditions conditions{};

  friend bool operator<(const Link& a, const Link& b) { return std::tie(a.level, a.key) < std::tie(b.level, b.key); }
};

// Returns whether `link` runs whenever `other` does: it has no condition that `other` does not have.
bool RunsWhenever(const Link& link, const Link& other) {
  return std::includes(other.conditions.begin(), other.conditions.end(), link.conditions.begin(),
                       link.conditions.end());
}

// Orders the collectives of one graph. Used once. After an error the graph may be partly changed; then it is not run.
class Orderer {
 public:
  Orderer(tf::Graph* graph, const tf::FunctionLibraryDefinition* library, bool is_function)
      : graph_(graph), is_function_(is_function), nodes_(library) {}

  // Finds the collectives and the frames, orders each frame's links from the inside out, puts the check before the
  // outermost chain, and chains it. For a graph without collectives it returns before it computes anything.
  Status Run() {
    LOCKSTEP_RETURN_IF_ERROR(Find());
    if (collectives_.empty() || IsEagerOp()) return OkStatus();
    LOCKSTEP_ASSIGN_OR_RETURN(frames_, Frames::Of(*graph_));
    LOCKSTEP_ASSIGN_OR_RETURN(std::vector<Link> links, Order(""));
    std::vector<std::string> operations;
    for (const Link& link : links) operations.push_back(link.key.description);
    LOCKSTEP_ASSIGN_OR_RETURN(Link check, MakeRunCheck(operations));
    links.insert(links.begin(), std::move(check));
    return Chain("", links);
  }

 private:
  // Marks the nodes that communicate.
  Status Find() {
    is_collective_.assign(graph_->num_node_ids(), false);
    for (const tf::Node* node : graph_->op_nodes()) {
      LOCKSTEP_ASSIGN_OR_RETURN(const bool contains, nodes_.Contains(*node));
      if (!contains) continue;
      is_collective_[node->id()] = true;
      collectives_.push_back(node);
    }
    return OkStatus();
  }

  // Returns whether this is the function around an eager op. Eager programs order their collectives themselves, and the
  // communicator compares them one by one.
  bool IsEagerOp() const {
    if (!is_function_ || collectives_.size() > 1) return false;
    const auto nodes = graph_->op_nodes();
    return std::all_of(nodes.begin(), nodes.end(), [this](const tf::Node* node) {
      return node == collectives_[0] || node->IsArg() || node->IsRetval();
    });
  }

  // Returns the links of a frame's chain, in order, and chains the links of loops inside. The frame's view is kept:
  // Join asks it for conditions after edges have been added.
  Result<std::vector<Link>> Order(const std::string& frame) {
    LOCKSTEP_ASSIGN_OR_RETURN(FrameView made, FrameView::Of(*graph_, frames_, frame));
    FrameView& view = views_[frame] = std::move(made);
    std::vector<Link> links;
    std::vector<size_t> vertex_of_link;
    std::vector<Step> steps(view.vertices().size(), Step::kNone);
    for (size_t v = 0; v < view.vertices().size(); ++v) {
      FrameView::Vertex& vertex = view.vertices()[v];
      Link link;
      if (vertex.node != nullptr) {
        if (!is_collective_[vertex.node->id()]) continue;
        link.key = nodes_.KeyOf(*vertex.node);
      } else {
        LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Link> inside, OrderLoop(*vertex.loop));
        if (inside.empty()) continue;
        RunOneIterationAtATime(vertex.entries);
        link.key = KeyOfLoop(inside);
      }
      steps[v] = Step::kCollective;
      vertex_of_link.push_back(v);
      link.entries = vertex.entries;
      link.exits = vertex.exits;
      link.conditions = vertex.conditions;
      links.push_back(std::move(link));
    }
    view.SetLevels(steps);
    for (size_t i = 0; i < links.size(); ++i) links[i].level = view.vertices()[vertex_of_link[i]].level.collectives;
    std::sort(links.begin(), links.end());
    return links;
  }

  // Makes the chain of a loop's body; returns an empty list if no node in it communicates.
  Result<std::vector<Link>> OrderLoop(const std::string& frame) {
    const bool has_any = std::any_of(collectives_.begin(), collectives_.end(),
                                     [&](const tf::Node* node) { return frames_.ChildOf(frame, *node) != nullptr; });
    if (!has_any) return std::vector<Link>();
    LOCKSTEP_ASSIGN_OR_RETURN(std::vector<Link> links, Order(frame));
    LOCKSTEP_RETURN_IF_ERROR(Chain(frame, links));
    return links;
  }

  // A loop has no name that ranks share. It takes the place of its first collective, with the highest priority (the
  // lowest number) of all.
  static OrderKey KeyOfLoop(const std::vector<Link>& inside) {
    OrderKey key = inside[0].key;
    std::vector<std::string> descriptions;
    for (const Link& link : inside) {
      key.priority = std::min(key.priority, link.key.priority);
      descriptions.push_back(link.key.description);
    }
    key.description = absl::StrCat("loop of ", absl::StrJoin(descriptions, ", "));
    return key;
  }

  // Overlapping iterations would run the same collective in an order that may differ between ranks. TensorFlow reads
  // the attribute from a loop's Enter nodes.
  static void RunOneIterationAtATime(const std::vector<tf::Node*>& enters) {
    for (tf::Node* enter : enters) {
      enter->ClearAttr("parallel_iterations");
      enter->AddAttr("parallel_iterations", 1);
    }
  }

  // Makes each link wait for those before it. It suffices to reach back to the nearest link that runs whenever this one
  // does, because that one has waited for the rest. Links in between may be dead and then order nothing before them.
  Status Chain(const std::string& frame, const std::vector<Link>& links) {
    for (size_t i = 1; i < links.size(); ++i) {
      for (size_t j = i; j-- > 0;) {
        LOCKSTEP_RETURN_IF_ERROR(Connect(frame, links[j], links[i]));
        if (RunsWhenever(links[j], links[i])) break;
      }
    }
    return OkStatus();
  }

  // Adds one control edge for each pair of exit and entry; between two plain collectives this is a single one.
  Status Connect(const std::string& frame, const Link& first, const Link& second) {
    std::vector<tf::Node*> ends = first.exits;
    if (!RunsWhenever(first, second)) {
      LOCKSTEP_ASSIGN_OR_RETURN(tf::Node* const join, Join(frame, first, second));
      ends = {join};
    }
    for (tf::Node* end : ends) {
      for (tf::Node* entry : second.entries) graph_->AddControlEdge(end, entry);
    }
    return OkStatus();
  }

  // Returns a node that runs whenever `second` does: after `first` has ended, or when one of the conditions that only
  // `first` has does not hold. For conditions c1 (outermost) to ck:
  //   gate_i = Switch(gate_{i-1} where c_{i-1} holds, c_i)      runs if c_1 to c_{i-1} hold
  //   end    = Identity(gate_k where c_k holds), after `first`  runs if all hold
  //   join   = Merge(...Merge(Merge(end, gate_k elsewhere), gate_{k-1} elsewhere)..., gate_1 elsewhere)
  //
  // For `first` inside of `if p: if q:` and `second` outside of both:
  // ```
  // p --> gate_1 --p--> gate_2 --q--> end (after first) --> Merge --> Merge = join
  //          |             `----not q-----------------------^         ^
  //          `----not p-----------------------------------------------'
  // ```
  // Exactly one of the paths is alive in each run, so every Merge has one live input, and the join never waits for a
  // branch that is not taken. The data on the path is the predicate itself and has no meaning; nodes that wait for the
  // join do not use it.
  // A control edge cannot say "after it, if it runs at all"; in TensorFlow only a Merge of data can.
  Result<tf::Node*> Join(const std::string& frame, const Link& first, const Link& second) {
    const FrameView& view = views_[frame];
    Conditions missing;
    std::set_difference(first.conditions.begin(), first.conditions.end(), second.conditions.begin(),
                        second.conditions.end(), std::back_inserter(missing));
    // The predicate of an inner branch has the conditions of the outer one, and so has more of them.
    std::stable_sort(missing.begin(), missing.end(), [&view](const Condition& a, const Condition& b) {
      return view.ConditionsOf(*a.pred, a.port).size() < view.ConditionsOf(*b.pred, b.port).size();
    });
    const std::string& device = first.exits[0]->assigned_device_name();
    using Output = tf::NodeBuilder::NodeOut;
    std::vector<tf::Node*> gates;
    for (size_t i = 0; i < missing.size(); ++i) {
      tf::Node* const pred = const_cast<tf::Node*>(missing[i].pred);
      const Output data = i == 0 ? Output(pred, missing[i].port) : Output(gates[i - 1], missing[i - 1].branch);
      // A bool predicate has two branches (TensorFlow's Switch); a number has any number of branches.
      const bool is_bool = pred->output_type(missing[i].port) == tf::DT_BOOL;
      auto builder = tf::NodeBuilder(graph_->NewName("lockstep/gate"), is_bool ? "Switch" : "_SwitchN");
      builder.Input(data).Input(Output(pred, missing[i].port));
      // The predicate of a Case is a number, and its Switch has as many outputs as there are branches.
      if (!is_bool) builder.Attr("num_outs", Branches(missing[i]));
      LOCKSTEP_ASSIGN_OR_RETURN(tf::Node* const gate, Add(std::move(builder), device));
      gates.push_back(gate);
    }
    auto end = tf::NodeBuilder(graph_->NewName("lockstep/end"), "Identity");
    end.Input(Output(gates.back(), missing.back().branch)).ControlInputs(first.exits);
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Node * join, Add(std::move(end), device));
    for (size_t i = missing.size(); i-- > 0;) {
      std::vector<Output> inputs = {Output(join)};
      for (int branch = 0; branch < gates[i]->num_outputs(); ++branch) {
        if (branch != missing[i].branch) inputs.emplace_back(gates[i], branch);
      }
      auto merge = tf::NodeBuilder(graph_->NewName("lockstep/join"), "Merge");
      merge.Input(inputs);
      LOCKSTEP_ASSIGN_OR_RETURN(join, Add(std::move(merge), device));
    }
    return join;
  }

  // Returns the number of outputs of the _SwitchN nodes that a numeric predicate controls.
  static int Branches(const Condition& condition) {
    int branches = condition.branch + 1;
    for (const tf::Edge* edge : condition.pred->out_edges()) {
      if (!edge->IsControlEdge() && edge->src_output() == condition.port && edge->dst()->IsSwitch()) {
        branches = std::max(branches, edge->dst()->num_outputs());
      }
    }
    return branches;
  }

  // Makes the node that compares the list of operations between ranks, as the first link.
  Result<Link> MakeRunCheck(const std::vector<std::string>& operations) {
    // The fingerprint is part of the name, because a session has one kernel for all stateful nodes of a name, in any
    // run.
    const std::string fingerprint = absl::StrCat(absl::Hex(RunAgreement::Fingerprint(operations), absl::kZeroPad16));
    auto builder = tf::NodeBuilder(absl::StrCat("lockstep/run_check_", fingerprint), "LockstepRunCheck");
    builder.Attr("operations", operations);
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Node* const node, Add(std::move(builder), collectives_[0]->assigned_device_name()));
    graph_->AddControlEdge(graph_->source_node(), node);
    Link link;
    link.entries = link.exits = {node};
    return link;
  }

  // Adds a node on the device of the collective that it serves: at this time devices are already assigned.
  Result<tf::Node*> Add(tf::NodeBuilder builder, const std::string& device) {
    tf::Node* node = nullptr;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(builder.Finalize(graph_, &node)));
    node->set_assigned_device_name(device);
    return node;
  }

  tf::Graph* const graph_;
  const bool is_function_;
  CollectiveNodes nodes_;
  std::vector<bool> is_collective_;  // by node id
  std::vector<const tf::Node*> collectives_;
  Frames frames_;
  std::map<std::string, FrameView> views_;  // by frame, in the state before edges were added
};

// Registered when the library is loaded. TensorFlow runs it on every graph; graphs without collectives are not changed.
class OrderCollectivesPass : public tf::GraphOptimizationPass {
 public:
  absl::Status Run(const tf::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr) return absl::OkStatus();
    tf::Graph* const graph = options.graph->get();
    const tf::FunctionLibraryDefinition* library = options.flib_def;
    if (library == nullptr) library = &graph->flib_def();
    TF_RETURN_IF_ERROR(ToTensorFlow(GroupCollectives(graph, library)));
    return ToTensorFlow(Orderer(graph, library, options.is_function_graph).Run());
  }
};

REGISTER_OPTIMIZATION(tf::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 0, OrderCollectivesPass);

}  // namespace
}  // namespace lockstep
