// Finds the nodes that communicate, and their names and descriptions. A node is a collective by its op's definition, or
// because it names a function that communicates. It names one as its type (a direct call) or in an attribute (If,
// While, PartitionedCall, and also MapDataset and similar ops). Collectives and calls run at their place in the graph;
// the pass orders them, a call as one link. The others run at their own time, and are refused.
//
// The ranks compare text made of the op, the name and the attributes that the op defines. Attributes that TensorFlow
// adds to nodes (_class, devices, inferred shapes) are left out: they may differ between equal programs.
#include "tf/graph/collective_nodes.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tf/bridge/convert.h"
#include "tf/comm/collective_kernel.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// Ops that run a function at their place in the graph. A direct call has the function's name as its type. An op that is
// missing here and runs a function with a collective is refused: that is an error, but never a wrong order.
constexpr std::array<std::string_view, 10> kCalls = {
    "PartitionedCall",
    "StatefulPartitionedCall",
    "If",
    "StatelessIf",
    "While",
    "StatelessWhile",
    "Case",
    "StatelessCase",
    "_If",
    "_While",
};

// Returns text like "LockstepAllReduce 'bucket' {N=3, T=DT_FLOAT, reduce_op="sum"}", with the attributes of the op's
// definition, in its order. This order is the same everywhere; a node's own attributes have no order.
std::string Describe(const tf::OpDef& op, std::string_view name, tf::AttrSlice attrs) {
  std::vector<std::string> values;
  for (const auto& attr : op.attr()) {
    if (absl::StartsWith(attr.name(), LOCKSTEP_OWN_ATTRS)) continue;
    const tf::AttrValue* value = attrs.Find(attr.name());
    if (value != nullptr) values.push_back(absl::StrCat(attr.name(), "=", tf::SummarizeAttrValue(*value)));
  }
  return absl::StrCat(op.name(), " '", CanonicalName(name), "' {", absl::StrJoin(values, ", "), "}");
}

// Returns the numbers that CanonicalName removes, one for each part of the name; no value for a part without a number.
// So "a_1/b" and "a/b_1" differ. Only the first 18 digits of a number count, which fit into 64 bits.
std::vector<std::optional<int64_t>> NumbersOf(std::string_view name) {
  std::vector<std::optional<int64_t>> numbers;
  size_t begin = std::string_view::npos;  // first digit after the last '_'
  for (size_t i = 0; i <= name.size(); ++i) {
    if (i == name.size() || name[i] == '/') {
      std::optional<int64_t> number;
      if (begin != std::string_view::npos && begin < i) {
        number = 0;
        for (const char c : name.substr(begin, std::min<size_t>(i - begin, 18))) number = *number * 10 + (c - '0');
      }
      numbers.push_back(number);
      begin = std::string_view::npos;
    } else if (name[i] == '_') {
      begin = i + 1;
    } else if (!std::isdigit(static_cast<unsigned char>(name[i]))) {
      begin = std::string_view::npos;
    }
  }
  return numbers;
}

}  // namespace

bool IsCollective(const tf::OpDef& op) {
  return std::any_of(op.attr().begin(), op.attr().end(),
                     [](const auto& attr) { return attr.name() == LOCKSTEP_COLLECTIVE_ATTR; });
}

// Returns whether the node communicates. If it does so by a call, the call must run at the node's place.
Result<bool> CollectiveNodes::Contains(const tf::Node& node) {
  if (IsCollective(node.op_def())) return true;
  const std::vector<std::string> inside = InFunctionsOf(node.type_string(), node.attrs());
  if (inside.empty()) return false;
  const bool is_call = std::find(kCalls.begin(), kCalls.end(), node.type_string()) != kCalls.end() ||
                       library_->Contains(node.type_string());
  if (!is_call) {
    return InvalidArgument(absl::StrCat("node '", node.name(), "' (", node.type_string(), ") runs a function with ",
                                        inside[0],
                                        ", in an order that ranks cannot share: put the collective outside"));
  }
  return true;
}

// Nodes without a priority of their own take the default: calls, and grouped ops that do not communicate.
OrderKey CollectiveNodes::KeyOf(const tf::Node& node) {
  OrderKey key;
  key.name = CanonicalName(node.name());
  key.numbers = NumbersOf(node.name());
  const std::vector<std::string> inside = InFunctionsOf(node.type_string(), node.attrs());
  if (inside.empty()) {
    key.description = Describe(node.op_def(), node.name(), node.attrs());
    tf::TryGetNodeAttr(node.attrs(), LOCKSTEP_COLLECTIVE_ATTR, &key.priority);
  } else {
    key.description = absl::StrCat("call '", key.name, "' of a function with ", absl::StrJoin(inside, ", "));
  }
  return key;
}

const std::vector<std::string>& CollectiveNodes::InFunction(const std::string& name) {
  // The empty entry ends the recursion if functions call each other in a circle.
  const auto [found, is_new] = in_function_.try_emplace(name);
  if (!is_new) return found->second;
  const tf::FunctionDef* const function = library_->Find(name);
  if (function == nullptr) return found->second;
  std::vector<std::string> result;
  for (const tf::NodeDef& node : function->node_def()) {
    const tf::OpDef* op = nullptr;
    const tf::AttrSlice attrs(node);
    if (library_->LookUpOpDef(node.op(), &op).ok() && IsCollective(*op)) {
      result.push_back(Describe(*op, node.name(), attrs));
    }
    for (std::string& inside : InFunctionsOf(node.op(), attrs)) result.push_back(std::move(inside));
  }
  // A function's nodes come in the order of creation, which may differ between ranks.
  std::sort(result.begin(), result.end());
  return in_function_[name] = std::move(result);
}

std::vector<std::string> CollectiveNodes::InFunctionsOf(std::string_view op, tf::AttrSlice attrs) {
  std::vector<std::string> result;
  auto add = [&](const std::string& function) {
    const std::vector<std::string>& inside = InFunction(function);
    result.insert(result.end(), inside.begin(), inside.end());
  };
  if (library_->Contains(std::string(op))) add(std::string(op));
  for (const auto& [name, value] : attrs) {
    if (value.has_func()) add(value.func().name());
    for (const auto& function : value.list().func()) add(function.name());
  }
  return result;
}

}  // namespace lockstep
