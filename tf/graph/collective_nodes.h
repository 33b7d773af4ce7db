#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/graph/graph.h"

// The order pass (order_pass.cc) gets two things about nodes from here: whether they communicate, and a key that is the
// same on all ranks, by which they are ordered and compared. The key is text that the program determines. Except for
// breaking ties, it depends on no addresses, node ids, or order in which a rank built its graph.
namespace lockstep {

// Returns whether an op communicates, which means that LOCKSTEP_COLLECTIVE_OP defined it. It reads the definition
// instead of a list of names, so an op of another library that uses the macro is ordered as well.
bool IsCollective(const tensorflow::OpDef& op);

// One communicating operation of a run, in the form in which it is ordered and compared between ranks. The parts that
// may differ between ranks without a difference in meaning (the numbers that make names unique) are only in `numbers`.
// Nodes that only one rank has shift these numbers, but not their order. So the numbers sort operations of one name in
// the order in which they were built, and are not compared between ranks.
//
//   node 'scope_2/dense_1/all_reduce_3'    name  scope/dense/all_reduce    numbers  2 1 3
struct OrderKey {
  int64_t priority = 0;
  std::string name;  // canonical
  // Removed from the name, one for each part; no value for a part without a number, which comes before all numbers.
  std::vector<std::optional<int64_t>> numbers;
  std::string description;  // type, name and attributes, which ranks compare

  friend bool operator<(const OrderKey& a, const OrderKey& b) {
    return std::tie(a.priority, a.name, a.numbers, a.description) <
           std::tie(b.priority, b.name, b.numbers, b.description);
  }
};

// Finds the nodes that communicate, directly or by the functions that they call. It lives as long as one run of the
// pass, and remembers its results for functions. Thread-compatible; `library` must outlive it.
class CollectiveNodes {
 public:
  explicit CollectiveNodes(const tensorflow::FunctionLibraryDefinition* library) : library_(library) {}

  // Returns whether `node` communicates. INVALID_ARGUMENT with the node's name if it calls a communicating function in
  // a way for which ranks cannot have a common order (as a dataset does, which runs ahead on its own threads).
  Result<bool> Contains(const tensorflow::Node& node);

  // Returns the key of a node for which Contains is true, or that is grouped (grouping.h). A call's description lists
  // the collectives inside, so ranks that call different functions get an error even if the calls have the same name.
  OrderKey KeyOf(const tensorflow::Node& node);

 private:
  // Returns the descriptions of the collectives in a function and in its callees, sorted. Valid as long as this object.
  const std::vector<std::string>& InFunction(const std::string& name);
  // Returns the same for all functions that a node refers to.
  std::vector<std::string> InFunctionsOf(std::string_view op, tensorflow::AttrSlice attrs);

  const tensorflow::FunctionLibraryDefinition* const library_;
  // By function, so that each is searched only once, however often it is called.
  std::map<std::string, std::vector<std::string>> in_function_;
};

}  // namespace lockstep
