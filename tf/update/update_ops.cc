// Fused sparse updates (core/embedding/optimizer/update.h) of variables and of dynamic tables: an optimizer's step for
// the rows of sparse gradients. They replace TensorFlow's unique, segment sum and ResourceSparseApply... for each
// variable.
//
//   gradients of table a ──► LockstepSparseUpdate a          gradients a ──► LockstepSparseUpdate a and b
//   gradients of table b ──► LockstepSparseUpdate b          gradients b ──►
//
// Python makes a node for each variable, as TensorFlow's optimizers do: with the same name, device and control
// dependencies, and one by one in eager execution. Every argument is a list. So the pass in tf/graph/grouping.h can
// join the nodes that can run together, regardless of their optimizers. The joined kernel makes a single parallel pass
// over the rows of all tables.
//
// Variables are treated as in TensorFlow's sparse training ops. Their mutexes are taken in the order of addresses
// (exclusively for all the kernel's work, so that readers see whole steps). They are put into "copy on read" mode, in
// which no reader keeps the buffer that is updated in place. A dynamic table has its own locks and slots.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/embedding/optimizer/update.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tf/bridge/host_memory.h"
#include "tf/bridge/parallel.h"
#include "tf/comm/collective_op.h"
#include "tf/table/table_resource.h"
#include "tf/update/update_rules.h"
#include "tf/variable/variable_snapshot.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;
using VariablePointer = tf::core::RefCountPtr<tf::Var>;

// One table of an op during a step: variables or a dynamic table.
struct Table {
  const std::string& name;
  const RuleKind& kind;
  bool all_rows;
  const tf::Tensor& values;
  const tf::Tensor& indices;
  std::vector<VariablePointer> variables;  // the table's own, then its slots
  tf::core::RefCountPtr<DynamicTableResource> dynamic;
  std::vector<SlotSpec> dynamic_slots;
  std::vector<uint32_t> numbers;
  TableUpdate update;  // for a dynamic table, only the rule
};

// "table 'user' (adagrad)"
std::string Describe(const Table& table) { return absl::StrCat("table '", table.name, "' (", table.kind.name, ")"); }

// The mutexes of all tables' variables, held from construction to destruction.
class Locks {
 public:
  explicit Locks(const std::vector<Table>& tables) {
    std::vector<decltype(std::declval<tf::Var&>().mu())> mutexes;  // their type is another one in newer versions
    for (const Table& table : tables) {
      for (const VariablePointer& variable : table.variables) mutexes.push_back(variable->mu());
    }
    std::sort(mutexes.begin(), mutexes.end());
    const auto distinct = std::unique(mutexes.begin(), mutexes.end());
    any_twice_ = distinct != mutexes.end();
    for (auto mutex = mutexes.begin(); mutex != distinct; ++mutex) locks_.emplace_back(**mutex);
  }

  // Returns whether a variable occurs in several places: then its updates are made one after another.
  bool any_twice() const { return any_twice_; }

 private:
  std::deque<tsl::mutex_lock> locks_;
  bool any_twice_ = false;
};

// Makes the variable the only owner of its buffer, so that `rows` (null: all) can be changed in place. Its mutex is
// held.
Status MakeWritable(tf::OpKernelContext* context, tf::Var* variable, const std::vector<uint32_t>* rows) {
  // A save that reads the buffer keeps it: the variable stays out of "copy on read" mode until it is saved.
  if (rows != nullptr && VariableSnapshot::BeforeChange(variable, *rows)) return OkStatus();
  if (!variable->copy_on_read_mode.load() && !variable->tensor()->RefCountIsOne()) {
    const tf::Tensor& old = *variable->tensor();
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor copy, AllocateTemporary(context, old.dtype(), old.shape()));
    std::memcpy(Data(copy), Data(old), old.TotalBytes());
    *variable->tensor() = std::move(copy);
  }
  variable->copy_on_read_mode.store(true);
  return OkStatus();
}

// Writes the row numbers of a batch from indices of either type: [count] in [0, rows).
template <typename Index>
Status ToNumbers(const tf::Tensor& indices, int64_t rows, const ParallelFor& parallel, std::vector<uint32_t>* out) {
  out->resize(indices.NumElements());
  uint32_t* const numbers = out->data();
  const auto* const from = static_cast<const Index*>(Data(indices));
  std::atomic<bool> all_in_range = true;
  constexpr int64_t kGrain = 1 << 15;
  parallel(indices.NumElements(), kGrain, [&](int64_t begin, int64_t end) {
    bool in_range = true;
    for (int64_t i = begin; i < end; ++i) {
      in_range &= static_cast<uint64_t>(static_cast<int64_t>(from[i])) < static_cast<uint64_t>(rows);
      numbers[i] = static_cast<uint32_t>(from[i]);
    }
    if (!in_range) all_in_range.store(false, std::memory_order_relaxed);
  });
  if (all_in_range) return OkStatus();
  int64_t i = 0;
  while (from[i] >= 0 && from[i] < rows) ++i;
  return InvalidArgument(absl::StrCat("indices[", i, "] is ", from[i], ", wanted one in [0, ", rows, ")"));
}

// Returns INVALID_ARGUMENT unless there is a gradient of a row's shape for each index. variable: [R, ...].
Status CheckShapes(const Table& table, const tf::TensorShape& variable) {
  tf::TensorShape wanted = variable;
  wanted.set_dim(0, table.indices.NumElements());
  if (table.indices.dims() == 1 && table.values.shape() == wanted) return OkStatus();
  return InvalidArgument(absl::StrCat("got indices of shape ", table.indices.shape().DebugString(),
                                      " and values of shape ", table.values.shape().DebugString(),
                                      " for a variable of shape ", variable.DebugString()));
}

// Applies the optimizers' steps to all tables. If it returns an error of its checks, no variable was changed.
class SparseUpdateKernel : public tf::OpKernel {
 public:
  explicit SparseUpdateKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    std::vector<std::string> rules, hyperparameter_names;
    OP_REQUIRES_OK(construction, construction->GetAttr("names", &names_));
    OP_REQUIRES_OK(construction, construction->GetAttr("rules", &rules));
    OP_REQUIRES_OK(construction, construction->GetAttr("all_rows", &all_rows_));
    OP_REQUIRES_OK(construction, construction->GetAttr("dynamic", &dynamic_));
    OP_REQUIRES_OK(construction, construction->GetAttr("slot_names", &slot_names_));
    OP_REQUIRES_OK(construction, construction->GetAttr("slot_initials", &slot_initials_));
    OP_REQUIRES_OK(construction, construction->GetAttr("hyperparameter_names", &hyperparameter_names));
    for (const std::string& rule : rules) {
      Result<const RuleKind*> kind = FindRule(rule);
      OP_REQUIRES_OK(construction, ToTensorFlow(kind.status()));
      kinds_.push_back(*kind);
    }
    const Status named = CheckHyperparameterNames(hyperparameter_names);
    const std::string who = absl::StrCat("update '", construction->def().name(), "': ");
    OP_REQUIRES_OK(construction, ToTensorFlow(CheckCounts(construction, named).WithPrefix(who)));
    OP_REQUIRES_OK(construction, ToTensorFlow(named.WithPrefix(who)));
  }

  void Compute(tf::OpKernelContext* context) override {
    context->SetStatus(ToTensorFlow(Update(context).WithPrefix(absl::StrCat("update '", name(), "': "))));
  }

 private:
  // Returns INVALID_ARGUMENT unless the names match the rules' hyperparameters, one table after another.
  Status CheckHyperparameterNames(std::span<const std::string> names) const {
    for (size_t i = 0; i < kinds_.size(); ++i) {
      const std::span<const std::string_view> wanted = kinds_[i]->hyperparameters;
      // Names in excess count as the last table's.
      const bool is_last = i + 1 == kinds_.size();
      const std::span<const std::string> got = is_last ? names : names.first(std::min(names.size(), wanted.size()));
      names = names.subspan(got.size());
      if (std::equal(got.begin(), got.end(), wanted.begin(), wanted.end())) continue;
      return InvalidArgument(absl::StrCat("table '", i < names_.size() ? names_[i] : "?", "', rule '", kinds_[i]->name,
                                          "': got hyperparameters [", absl::StrJoin(got, ", "), "], wanted [",
                                          absl::StrJoin(wanted, ", "), "]"));
    }
    return OkStatus();
  }

  // Returns INVALID_ARGUMENT unless there are as many attributes and inputs as the tables and their rules need. named:
  // the result of CheckHyperparameterNames, whose message often tells more.
  Status CheckCounts(tf::OpKernelConstruction* construction, const Status& named) const {
    int count = 0, slots = 0, hyperparameters = 0;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(construction->GetAttr("N", &count)));
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(construction->GetAttr("S", &slots)));
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(construction->GetAttr("H", &hyperparameters)));
    int wanted_slots = 0, wanted_names = 0, wanted_hyperparameters = 0;
    for (size_t i = 0; i < kinds_.size(); ++i) {
      int& wanted = i < dynamic_.size() && dynamic_[i] ? wanted_names : wanted_slots;
      wanted += kinds_[i]->num_slots;
      wanted_hyperparameters += kinds_[i]->num_hyperparameters();
    }
    const auto has = [](const auto& list, int wanted) { return list.size() == static_cast<size_t>(wanted); };
    if (has(names_, count) && has(kinds_, count) && has(all_rows_, count) && has(dynamic_, count) &&
        has(slot_names_, wanted_names) && has(slot_initials_, wanted_names) && slots == wanted_slots &&
        hyperparameters == wanted_hyperparameters &&
        construction->num_inputs() == 3 * count + slots + hyperparameters) {
      return OkStatus();
    }
    return InvalidArgument(absl::StrCat(
        count, " tables, but ", names_.size(), " names, ", kinds_.size(), " rules, ", all_rows_.size(), " all_rows, ",
        dynamic_.size(), " dynamic, ", slots, " slots of ", wanted_slots, ", ", slot_names_.size(), " slot_names and ",
        slot_initials_.size(), " slot_initials of ", wanted_names, ", and ", hyperparameters, " hyperparameters of ",
        wanted_hyperparameters, named.ok() ? "" : "; ", named.message()));
  }

  Status Update(tf::OpKernelContext* context) const {
    const ParallelFor parallel = ParallelForOf(context);
    LOCKSTEP_ASSIGN_OR_RETURN(std::vector<Table> tables, TablesOf(context));
    const Locks locks(tables);
    std::vector<TableUpdate> updates;
    for (Table& table : tables) {
      const Status prepared = table.dynamic ? PrepareDynamic(&table) : Prepare(context, parallel, &table);
      LOCKSTEP_RETURN_IF_ERROR(prepared.WithPrefix(absl::StrCat(Describe(table), ": ")));
      if (!table.dynamic) updates.push_back(table.update);
    }
    // Dynamic tables come first, because they may still fail for lack of memory.
    for (const Table& table : tables) {
      if (!table.dynamic) continue;
      const Status updated = table.dynamic->Update(table.numbers, static_cast<const float*>(Data(table.values)),
                                                   table.update.rule, table.dynamic_slots, table.all_rows, parallel);
      LOCKSTEP_RETURN_IF_ERROR(updated.WithPrefix(absl::StrCat(Describe(table), ": ")));
    }
    if (!locks.any_twice()) {
      ApplyUpdates(updates, parallel);
    } else {
      for (const TableUpdate& update : updates) ApplyUpdates({&update, 1}, parallel);
    }
    return OkStatus();
  }

  // Returns the tables with their rules and variables, which exist but are not checked yet.
  Result<std::vector<Table>> TablesOf(tf::OpKernelContext* context) const {
    const int count = static_cast<int>(kinds_.size());
    int slot = count, hyperparameter = context->num_inputs() - 2 * count;
    for (const RuleKind* kind : kinds_) hyperparameter -= kind->num_hyperparameters();
    size_t named = 0;
    std::vector<Table> tables;
    for (int i = 0; i < count; ++i) {
      const RuleKind& kind = *kinds_[i];
      const int values = context->num_inputs() - 2 * count + i;
      Table& table = tables.emplace_back(Table{
          names_[i], kind, all_rows_[i], context->input(values), context->input(values + count), {}, {}, {}, {}, {}});
      const auto look_up = [&](int input, const std::string& what) -> Status {
        const tf::ResourceHandle& handle = tf::HandleFromInput(context, input);
        VariablePointer& variable = table.variables.emplace_back();
        const absl::Status found = tf::LookupResource(context, handle, &variable);
        if (found.ok()) return CheckOnHost(handle).WithPrefix(absl::StrCat(Describe(table), ": "));
        return FailedPrecondition(absl::StrCat(Describe(table), ": ", what, " is not initialized: ", found.message()));
      };
      if (dynamic_[i]) {
        LOCKSTEP_ASSIGN_OR_RETURN(table.dynamic, TableOf(context, i));
        for (int s = 0; s < kind.num_slots; ++s, ++named) {
          table.dynamic_slots.push_back({slot_names_[named].c_str(), slot_initials_[named]});
        }
      } else {
        LOCKSTEP_RETURN_IF_ERROR(look_up(i, "the variable"));
        for (int s = 0; s < kind.num_slots; ++s) LOCKSTEP_RETURN_IF_ERROR(look_up(slot++, absl::StrCat("slot ", s)));
      }
      std::vector<float> hyperparameters;
      for (int h = 0; h < kind.num_hyperparameters(); ++h) {
        const tf::Tensor& tensor = context->input(hyperparameter++);
        if (tensor.NumElements() != 1) {
          return InvalidArgument(absl::StrCat(Describe(table), ": hyperparameter ", h, " has shape ",
                                              tensor.shape().DebugString(), ", wanted a scalar"));
        }
        hyperparameters.push_back(tensor.flat<float>()(0));
      }
      const DType row_type = table.dynamic ? table.dynamic->table().options().row_type : DType::kFloat32;
      LOCKSTEP_ASSIGN_OR_RETURN(table.update.rule, kind.make(hyperparameters, row_type));
    }
    return tables;
  }

  // Makes all checks and fills `update`. The variables' mutexes are held.
  static Status Prepare(tf::OpKernelContext* context, const ParallelFor& parallel, Table* table) {
    const tf::Tensor& weights = *table->variables[0]->tensor();
    for (size_t v = 0; v < table->variables.size(); ++v) {
      const tf::Tensor& tensor = *table->variables[v]->tensor();
      const std::string what = v == 0 ? "the variable" : absl::StrCat("slot ", v - 1);
      if (!tensor.IsInitialized()) return FailedPrecondition(absl::StrCat(what, " is not initialized"));
      if (tensor.dtype() != tf::DT_FLOAT || tensor.dims() < 1 || tensor.shape() != weights.shape()) {
        return InvalidArgument(absl::StrCat(what, " is ", tf::DataTypeString(tensor.dtype()),
                                            tensor.shape().DebugString(), ", wanted float of shape ",
                                            weights.dims() < 1 ? "[R, ...]" : weights.shape().DebugString()));
      }
    }
    LOCKSTEP_RETURN_IF_ERROR(CheckShapes(*table, weights.shape()));
    const int64_t rows = weights.dim_size(0), count = table->indices.NumElements();
    if (rows >= kNoRow || count >= kNoRow) {
      return Unimplemented(absl::StrCat("got ", count, " gradients of ", rows, " rows, wanted fewer than ", kNoRow));
    }
    LOCKSTEP_RETURN_IF_ERROR((table->indices.dtype() == tf::DT_INT32
                                  ? ToNumbers<int32_t>
                                  : ToNumbers<int64_t>)(table->indices, rows, parallel, &table->numbers));
    for (const VariablePointer& variable : table->variables) {
      const std::vector<uint32_t>* const rows = table->all_rows ? nullptr : &table->numbers;
      LOCKSTEP_RETURN_IF_ERROR(MakeWritable(context, variable.get(), rows));
    }
    const int64_t dim = rows == 0 ? 0 : weights.NumElements() / rows;
    const auto view = [&](int v) {
      return RowView::Contiguous(Data(*table->variables[v]->tensor()), dim * static_cast<int64_t>(sizeof(float)));
    };
    table->update.target.rows = view(0);
    for (int s = 0; s < table->kind.num_slots; ++s) table->update.target.slots[s] = view(1 + s);
    table->update.target.dim = dim;
    table->update.numbers = table->numbers;
    table->update.gradients = static_cast<const float*>(Data(table->values));
    table->update.all_rows = table->all_rows ? rows : 0;
    return OkStatus();
  }

  // The same for a dynamic table, where a key that is not admitted has row number -1.
  static Status PrepareDynamic(Table* table) {
    LOCKSTEP_RETURN_IF_ERROR(CheckShapes(*table, {0, table->dynamic->dim()}));
    if (table->indices.dtype() != tf::DT_INT64) return InvalidArgument("got int32 row numbers, wanted int64");
    LOCKSTEP_ASSIGN_OR_RETURN(table->numbers, DynamicTableResource::Numbers(table->indices));
    return OkStatus();
  }

  std::vector<std::string> names_;
  std::vector<const RuleKind*> kinds_;
  std::vector<bool> all_rows_;
  std::vector<bool> dynamic_;
  std::vector<std::string> slot_names_;  // slots of the dynamic tables
  std::vector<float> slot_initials_;
};

REGISTER_KERNEL_BUILDER(Name("LockstepSparseUpdate").Device(tf::DEVICE_CPU), SparseUpdateKernel);

REGISTER_OP("LockstepSparseUpdate")
    .SetIsStateful()
    .Input("tables: N * resource")
    .Input("slots: S * resource")
    .Input("hyperparameters: H * float")
    .Input("values: N * float")
    .Input("indices: Tindices")
    .Attr("N: int >= 1")
    .Attr("S: int >= 0")
    .Attr("H: int >= 0")
    .Attr("Tindices: list({int32, int64}) >= 1")
    .Attr("names: list(string) >= 1")
    .Attr("rules: list(string) >= 1")
    .Attr("hyperparameter_names: list(string) >= 1")
    .Attr("all_rows: list(bool) >= 1")
    .Attr("dynamic: list(bool) >= 1")
    .Attr("slot_names: list(string) >= 0")
    .Attr("slot_initials: list(float) >= 0")
    .Attr(LOCKSTEP_GROUP_ATTR ": bool = true")
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(R"doc(
Makes an optimizer's step for N tables, each float [R, ...]: sums the gradients of each row and applies the rule once.

tables: Variables, or handles of dynamic tables.
slots: The slots of all variables, one table after another, in the table's shape.
hyperparameters: Scalars for all tables, one table after another, in the order of the rule.
values: [N, ...]; gradients of rows.
indices: [N]; the rows of the gradients. For a dynamic table, -1 drops a gradient.
names: The tables' names, for messages.
rules: Optimizers, by the names of tf/update/update_rules.h.
hyperparameter_names: The names of `hyperparameters`, which have to be those of the rules.
all_rows: Whether rows without a gradient are updated as well, with a gradient of zero.
dynamic: Whether each table is dynamic.
slot_names: For the dynamic tables, one table after another; missing slots are made.
slot_initials: The initial values of these slots.
)doc");

}  // namespace
}  // namespace lockstep
