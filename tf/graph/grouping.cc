// Nodes are grouped by level: the largest number of groupable collectives on a path to them, themselves included, and
// then the number of groupable local operations since the last of these. Levels are compared in this order. They never
// fall along a path, and rise at each groupable node. So two nodes of one level never depend on each other. Making the
// groups of all levels at once closes no circle either: each step on a circle would lead from a group to one of a
// higher level, or stay among nodes that no group changes.
//
//   level 1        level 2                     level 3
//   Route a        Combine a                   CombineGradient a
//   Route b        Combine b  --> Route c      CombineGradient b       Route c looks up the result of Combine b,
//                                              Combine c               so c is not part of the first group
//
// Local operations (Pool, SparseUpdate) do not raise the level of a collective. So a lookup with Pool between its
// exchanges still shares them with a lookup without.
//
// All groups are found before the first is made: levels and conditions are the original graph's.
#include "tf/graph/grouping.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/comm/job/run_agreement.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tf/bridge/convert.h"
#include "tf/comm/collective_op.h"
#include "tf/graph/collective_nodes.h"
#include "tf/graph/edges.h"
#include "tf/graph/frame_view.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// The common properties of nodes that become one.
struct GroupKey {
  std::string frame;
  Conditions conditions;
  Level level;
  std::string op;
  std::string device;
  std::string attributes;  // attributes of the node as a whole

  friend bool operator<(const GroupKey& a, const GroupKey& b) {
    return std::tie(a.frame, a.conditions, a.level, a.op, a.device, a.attributes) <
           std::tie(b.frame, b.conditions, b.level, b.op, b.device, b.attributes);
  }
};

bool IsGroupable(const tf::Node& node) {
  bool group = false;
  return tf::TryGetNodeAttr(node.attrs(), LOCKSTEP_GROUP_ATTR, &group) && group;
}

// Returns whether an attribute has a value for each place; the values of several nodes are concatenated.
bool IsList(const tf::OpDef::AttrDef& attr) { return attr.type().rfind("list(", 0) == 0; }

// Returns whether an attribute is the number of places.
bool IsNumber(const tf::OpDef& op, const std::string& attr) {
  const auto names = [&](const auto& arg) { return arg.number_attr() == attr; };
  return std::any_of(op.input_arg().begin(), op.input_arg().end(), names) ||
         std::any_of(op.output_arg().begin(), op.output_arg().end(), names);
}

// Returns the common attributes in the order of the op's definition, because a node's attributes have no order.
std::string AttributesOfAll(const tf::Node& node) {
  std::string text;
  for (const auto& attr : node.op_def().attr()) {
    if (IsList(attr) || IsNumber(node.op_def(), attr.name())) continue;
    const tf::AttrValue* const value = node.attrs().Find(attr.name());
    if (value != nullptr) absl::StrAppend(&text, attr.name(), "=", tf::SummarizeAttrValue(*value), ";");
  }
  return text;
}

// Nodes with their order keys, which are costly to make and often compared.
struct Member {
  OrderKey key;
  tf::Node* node;
};

using Groups = std::map<GroupKey, std::vector<Member>>;

// Returns all nodes that may be grouped, by the key of their group.
Result<Groups> FindGroups(const tf::Graph& graph, const std::vector<tf::Node*>& nodes, CollectiveNodes* collectives) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Frames frames, Frames::Of(graph));
  std::set<std::string> names;
  for (const tf::Node* node : nodes) names.insert(frames.frame_of(*node));
  Groups groups;
  for (const std::string& frame : names) {
    LOCKSTEP_ASSIGN_OR_RETURN(FrameView view, FrameView::Of(graph, frames, frame));
    std::vector<Step> steps(view.vertices().size(), Step::kNone);
    for (size_t v = 0; v < steps.size(); ++v) {
      const FrameView::Vertex& vertex = view.vertices()[v];
      if (vertex.node != nullptr) {
        if (IsGroupable(*vertex.node)) {
          steps[v] = IsCollective(vertex.node->op_def()) ? Step::kCollective : Step::kLocal;
        }
      } else if (std::any_of(nodes.begin(), nodes.end(),
                             [&](const tf::Node* node) { return frames.ChildOf(*vertex.loop, *node) != nullptr; })) {
        steps[v] = Step::kCollective;
      }
    }
    view.SetLevels(steps);
    for (size_t v = 0; v < steps.size(); ++v) {
      const FrameView::Vertex& vertex = view.vertices()[v];
      if (steps[v] == Step::kNone || vertex.node == nullptr) continue;
      GroupKey key{frame,
                   vertex.conditions,
                   After(vertex.level, steps[v]),
                   vertex.node->type_string(),
                   vertex.node->assigned_device_name(),
                   AttributesOfAll(*vertex.node)};
      groups[std::move(key)].push_back({collectives->KeyOf(*vertex.node), vertex.node});
    }
  }
  return groups;
}

// Appends `more` to `list`, for any type of list.
void Append(const tf::AttrValue& more, tf::AttrValue* list) { list->mutable_list()->MergeFrom(more.list()); }

// Returns the definition of the node that replaces all members.
tf::NodeDef DefinitionOf(const std::vector<Member>& members) {
  const tf::Node& first = *members[0].node;
  // The name is made of the data that ranks compare and kernels are made from, not of the nodes' own names. So groups
  // with the same description may share a kernel.
  std::vector<std::string> descriptions;
  for (const Member& member : members) descriptions.push_back(member.key.description);
  tf::NodeDef def;
  def.set_name(absl::StrCat(first.name(), "/and_", members.size() - 1, "_more/",
                            absl::Hex(RunAgreement::Fingerprint(descriptions), absl::kZeroPad16)));
  def.set_op(first.type_string());
  def.set_device(first.requested_device());
  for (const auto& attr : first.op_def().attr()) {
    tf::AttrValue& value = (*def.mutable_attr())[attr.name()];
    value = *first.attrs().Find(attr.name());
    for (size_t i = 1; i < members.size(); ++i) {
      const tf::AttrValue& more = *members[i].node->attrs().Find(attr.name());
      if (IsList(attr)) {
        Append(more, &value);
      } else if (IsNumber(first.op_def(), attr.name())) {
        value.set_i(value.i() + more.i());
      }
    }
  }
  return def;
}

// For each member, the index of each of its inputs (or outputs) among the group's: argument by argument, and in each
// argument the members in turn.
//
//   members' (argument.member)   1.a 2.a 3.a | 1.b 2.b 3.b        group's   1.a 1.b  2.a 2.b  3.a 3.b
using Places = std::vector<std::vector<int>>;

Result<std::pair<Places, Places>> PlacesIn(const std::vector<Member>& members) {
  std::pair<Places, Places> places;
  std::vector<tf::NameRangeMap> inputs(members.size()), outputs(members.size());
  for (size_t i = 0; i < members.size(); ++i) {
    const tf::Node& node = *members[i].node;
    LOCKSTEP_RETURN_IF_ERROR(
        FromTensorFlow(tf::NameRangesForNode(node.attrs(), node.op_def(), &inputs[i], &outputs[i])));
    places.first.emplace_back(node.num_inputs());
    places.second.emplace_back(node.num_outputs());
  }
  const auto fill = [&](const auto& args, std::vector<tf::NameRangeMap>& ranges, Places* out) {
    int next = 0;
    for (const auto& arg : args) {
      for (size_t i = 0; i < members.size(); ++i) {
        const auto& [begin, end] = ranges[i][arg.name()];
        for (int place = begin; place < end; ++place) (*out)[i][place] = next++;
      }
    }
  };
  const tf::OpDef& op = members[0].node->op_def();
  fill(op.input_arg(), inputs, &places.first);
  fill(op.output_arg(), outputs, &places.second);
  return places;
}

// Adds the group's node to the graph and removes the members.
Status MakeOne(tf::Graph* graph, const std::vector<Member>& members) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto places, PlacesIn(members));
  absl::Status status;
  tf::Node* const group = graph->AddNode(DefinitionOf(members), &status);
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(status));
  group->set_assigned_device_name(members[0].node->assigned_device_name());
  for (size_t i = 0; i < members.size(); ++i) {
    TakePlace(graph, members[i].node, group, places.first[i], places.second[i]);
  }
  return OkStatus();
}

}  // namespace

Status GroupCollectives(tf::Graph* graph, const tf::FunctionLibraryDefinition* library) {
  std::vector<tf::Node*> nodes;
  for (tf::Node* node : graph->op_nodes()) {
    if (IsGroupable(*node)) nodes.push_back(node);
  }
  if (nodes.size() < 2) return OkStatus();
  CollectiveNodes collectives(library);
  LOCKSTEP_ASSIGN_OR_RETURN(Groups groups, FindGroups(*graph, nodes, &collectives));
  for (auto& [key, members] : groups) {
    if (members.size() < 2) continue;
    std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) { return a.key < b.key; });
    LOCKSTEP_RETURN_IF_ERROR(MakeOne(graph, members));
  }
  return OkStatus();
}

}  // namespace lockstep
