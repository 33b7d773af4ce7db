#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/graph/graph.h"

// What the pass in order_pass.cc knows of nodes: whether they communicate, and a key by which they are ordered and
// compared that is the same on all ranks. The key is made of text that the program determines, and of nothing that
// depends on addresses, node ids or the order in which a rank built its graph, but for breaking ties.
namespace lockstep {

// Whether an op communicates: whether it was defined by LOCKSTEP_COLLECTIVE_OP. Asked of the definition and not of a
// list of names, so that an op in another library that is defined by the macro is put in order as well.
bool IsCollective(const tensorflow::OpDef& op);

// One operation of a run that communicates, as it is put in order and compared over ranks. What ranks may have
// differently although they mean the same (the numbers that make names unique) is in `numbers` alone. Nodes of one rank
// alone shift these numbers, but not their order: so they put operations of one name in the order in which these were
// built, and are not compared over ranks.
//
//   node 'scope_2/dense_1/all_reduce_3'    name  scope/dense/all_reduce    numbers  2 1 3
struct OrderKey {
  int64_t priority = 0;
  std::string name;              // canonical
  std::vector<int64_t> numbers;  // taken out of the name, one for each of its parts; -1 where a part has none
  std::string description;       // type, name and attributes: what ranks compare

  friend bool operator<(const OrderKey& a, const OrderKey& b) {
    return std::tie(a.priority, a.name, a.numbers, a.description) <
           std::tie(b.priority, b.name, b.numbers, b.description);
  }
};

// Finds the nodes that communicate, themselves or by the functions that they call. Lives as long as one run of the
// pass, and remembers what it found in functions. Thread-compatible; `library` must outlive it.
class CollectiveNodes {
 public:
  explicit CollectiveNodes(const tensorflow::FunctionLibraryDefinition* library) : library_(library) {}

  // Whether `node` communicates. INVALID_ARGUMENT that names it where it calls a function that does in a way that no
  // order over ranks can be kept for (a dataset's, which runs ahead on threads of its own).
  Result<bool> Contains(const tensorflow::Node& node);

  // Of a node for which Contains is true, or that is grouped (grouping.h). A call's description lists the collectives
  // inside of it, so that ranks that call different functions are told so although the calls have one name.
  OrderKey KeyOf(const tensorflow::Node& node);

 private:
  // Descriptions of the collectives in a function and in those that it calls, sorted. Valid as long as this object.
  const std::vector<std::string>& InFunction(const std::string& name);
  // Those of all functions that a node refers to.
  std::vector<std::string> InFunctionsOf(std::string_view op, tensorflow::AttrSlice attrs);

  const tensorflow::FunctionLibraryDefinition* const library_;
  // By function, so that each is looked through once, however often it is called.
  std::map<std::string, std::vector<std::string>> in_function_;
};

}  // namespace lockstep
