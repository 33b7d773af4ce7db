// Which nodes communicate, and by what they are known. A node is a collective by its op's definition, or because a
// function that it names does: as its type (a direct call) or in an attribute (If, While, PartitionedCall, and also
// MapDataset and its like). The first kinds run where they stand in the graph and are put in order as one link; the
// others run at a time of their own, and are refused.
//
// What is compared over ranks is text made of the op, the name and the attributes that the op defines. Attributes that
// TensorFlow adds to nodes (_class, devices, shapes it inferred) are left out: they may differ where nothing does.
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

// Ops that run a function where they stand in the graph. A direct call has the function's name as its type. Any op that
// is missing here and takes a function is refused, if there is a collective inside: an error, and no wrong order.
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

// "LockstepAllReduce 'bucket' {N=3, T=DT_FLOAT, reduce_op="sum"}", by the attributes that the op defines. In the order
// of the definition, which is the same everywhere; a node's own attributes have no order.
std::string Describe(const tf::OpDef& op, std::string_view name, tf::AttrSlice attrs) {
  std::vector<std::string> values;
  for (const auto& attr : op.attr()) {
    const tf::AttrValue* value = attrs.Find(attr.name());
    if (value != nullptr) values.push_back(absl::StrCat(attr.name(), "=", tf::SummarizeAttrValue(*value)));
  }
  return absl::StrCat(op.name(), " '", CanonicalName(name), "' {", absl::StrJoin(values, ", "), "}");
}

// The numbers that CanonicalName takes out, one for each part of the name: -1 where a part has none, so that
// "a_1/b" and "a/b_1" differ. Of more than 18 digits the first 18 count, which fit into 64 bits.
std::vector<int64_t> NumbersOf(std::string_view name) {
  std::vector<int64_t> numbers;
  size_t begin = std::string_view::npos;  // of the digits behind the last '_'
  for (size_t i = 0; i <= name.size(); ++i) {
    if (i == name.size() || name[i] == '/') {
      int64_t number = -1;
      if (begin != std::string_view::npos && begin < i) {
        number = 0;
        for (const char c : name.substr(begin, std::min<size_t>(i - begin, 18))) number = number * 10 + (c - '0');
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

// Two steps: does it communicate, and if so by a call, is the call made where the node stands.
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

// What has no priority of its own takes the default: a call, and an op that is grouped and does not communicate.
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
  // The empty entry ends the search where functions call each other in a circle.
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
  // A function's nodes come in the order of creation, which ranks need not share.
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
