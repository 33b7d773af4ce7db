// Reads the content of a dynamic table of this process, inserts rows, and evicts keys:
//
//   tensor       shape      dtype            is
//   keys         [N]        int64 or string  of the table's kind
//   rows         [N, D]     float            for any type of the table's rows
//   slots        [N, D]     float            one for each requested slot
//   frequencies  [N]        int64            how often a key was seen; -1 if the table does not record it
//   versions     [N]        int64            the step in which it was last seen; -1 if the table does not record it
#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tf/table/table_kernel.h"
#include "tf/table/table_rows.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

class CountKernel : public TableKernelBase {
 public:
  using TableKernelBase::TableKernelBase;

 protected:
  Status Run(tf::OpKernelContext* context, DynamicTableResource& table) override {
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * out, AllocateTensor(context, 0, {3}));
    auto counts = out->flat<int64_t>();
    counts(0) = table.table().total_count();
    counts(1) = table.table().candidate_count();
    counts(2) = table.MemoryUsed();
    return OkStatus();
  }
};

class CountsKernel : public TableKernelBase {
 public:
  explicit CountsKernel(tf::OpKernelConstruction* construction) : TableKernelBase(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("of", &of_));
  }

 protected:
  Status Run(tf::OpKernelContext* context, DynamicTableResource& table) override {
    const tf::Tensor& keys = context->input(1);
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * out, AllocateTensor(context, 0, keys.shape()));
    auto* counts = static_cast<int64_t*>(Data(*out));
    if (of_ == "seconds") return table.GetSeconds(keys, counts);
    return of_ == "version" ? table.GetVersion(keys, counts) : table.GetFrequency(keys, counts);
  }

 private:
  std::string of_;
};

// Returns the order of the keys by their numbers. In it, results do not depend on threads.
std::vector<int64_t> AscendingOrder(const TableRows& all) {
  std::vector<int64_t> order(all.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return all.keys[a] < all.keys[b]; });
  return order;
}

// Writes outputs 0, the keys, and 1, the rows.
Status WriteKeysAndRows(tf::OpKernelContext* context, const DynamicTableResource& table, const TableRows& all,
                        const std::vector<int64_t>& order) {
  const bool strings = table.strings() != nullptr;
  if (context->expected_output_dtype(0) != (strings ? tf::DT_STRING : tf::DT_INT64)) {
    return InvalidArgument(absl::StrCat("table '", table.name(), "': its keys are ", strings ? "string" : "int64"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * keys, AllocateTensor(context, 0, {all.size()}));
  for (int64_t n = 0; n < all.size(); ++n) {
    const int64_t key = all.keys[order[n]];
    std::string bytes;
    if (!strings) {
      keys->flat<int64_t>()(n) = key;
    } else if (table.strings()->Bytes(key, &bytes)) {
      keys->flat<tf::tstring>()(n) = bytes;
    }
  }
  LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * rows, AllocateTensor(context, 1, {all.size(), table.dim()}));
  auto* out = static_cast<float*>(Data(*rows));
  for (const int64_t i : order) ReadRow(table.table(), all, i, std::exchange(out, out + table.dim()));
  return OkStatus();
}

class ExportKernel : public TableKernelBase {
 public:
  explicit ExportKernel(tf::OpKernelConstruction* construction) : TableKernelBase(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("slots", &slots_));
  }

 protected:
  Status Run(tf::OpKernelContext* context, DynamicTableResource& table) override {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int> slots, SlotNumbers(table));
    const TableRows all = table.table().Export();
    const std::vector<int64_t> order = AscendingOrder(all);
    LOCKSTEP_RETURN_IF_ERROR(WriteKeysAndRows(context, table, all, order));
    LOCKSTEP_RETURN_IF_ERROR(WriteCounts(context, 2, all.frequencies, order));
    LOCKSTEP_RETURN_IF_ERROR(WriteCounts(context, 3, all.versions, order));
    for (size_t s = 0; s < slots.size(); ++s) {
      LOCKSTEP_ASSIGN_OR_RETURN(float* out, AllocateRows(context, 4 + static_cast<int>(s), {all.size()}, table.dim()));
      for (const int64_t i : order) out = std::copy_n(all.slots[slots[s]].data() + i * table.dim(), table.dim(), out);
    }
    return OkStatus();
  }

 private:
  Result<std::vector<int>> SlotNumbers(const DynamicTableResource& table) const {
    const std::vector<std::string> names = table.table().slot_names();
    std::vector<int> numbers;
    for (const std::string& slot : slots_) {
      const auto found = std::find(names.begin(), names.end(), slot);
      if (found == names.end()) {
        return InvalidArgument(absl::StrCat("table '", table.name(), "' has no slot '", slot, "'"));
      }
      numbers.push_back(static_cast<int>(found - names.begin()));
    }
    return numbers;
  }

  // A count that the table does not record, in tensors.
  static constexpr int64_t kNotRecorded = -1;

  template <typename Count>
  static Status WriteCounts(tf::OpKernelContext* context, int index, const std::vector<Count>& counts,
                            const std::vector<int64_t>& order) {
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * out, AllocateTensor(context, index, {static_cast<int64_t>(order.size())}));
    auto values = out->flat<int64_t>();
    for (size_t n = 0; n < order.size(); ++n) values(n) = counts.empty() ? kNotRecorded : int64_t{counts[order[n]]};
    return OkStatus();
  }

  std::vector<std::string> slots_;
};

class EvictKernel : public TableKernelBase {
 public:
  explicit EvictKernel(tf::OpKernelConstruction* construction) : TableKernelBase(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("keeps_last_lookup_alone", &last_lookup_));
  }

 protected:
  Status Run(tf::OpKernelContext* context, DynamicTableResource& table) override {
    return table.Evict(last_lookup_, [&](const TableRows& rows) {
      return WriteKeysAndRows(context, table, rows, AscendingOrder(rows));
    });
  }

 private:
  bool last_lookup_ = false;
};

// Inserts or overwrites rows of admitted keys; their slots get initial values.
class InsertKernel : public TableKernelBase {
 public:
  using TableKernelBase::TableKernelBase;

 protected:
  Status Run(tf::OpKernelContext* context, DynamicTableResource& table) override {
    const tf::Tensor& keys = context->input(1);
    const tf::Tensor& rows = context->input(2);
    LOCKSTEP_RETURN_IF_ERROR(table.CheckKeys(keys));
    const int64_t count = keys.NumElements();
    if (rows.shape() != tf::TensorShape({count, table.dim()})) {
      return InvalidArgument(absl::StrCat("table '", table.name(), "': got rows of shape ", rows.shape().DebugString(),
                                          ", wanted [", count, ",", table.dim(), "]"));
    }
    TableRows part;
    part.rows = StoredRows(table.table().options().row_type, rows);
    LOCKSTEP_ASSIGN_OR_RETURN(part.frequencies, Counts<uint32_t>(table, context->input(3), count));
    LOCKSTEP_ASSIGN_OR_RETURN(part.versions, Counts<int64_t>(table, context->input(4), count));
    RestoreOptions options;
    options.now = table.now();
    options.changed = true;
    return table.Restore(keys, std::move(part), options);
  }

 private:
  // Returns no counts, or one for each key.
  template <typename Count>
  static Result<std::vector<Count>> Counts(const DynamicTableResource& table, const tf::Tensor& counts, int64_t keys) {
    if (counts.NumElements() != 0 && counts.NumElements() != keys) {
      return InvalidArgument(
          absl::StrCat("table '", table.name(), "': ", counts.NumElements(), " counts for ", keys, " keys"));
    }
    const auto* values = static_cast<const int64_t*>(Data(counts));
    return std::vector<Count>(values, values + counts.NumElements());
  }
};

absl::Status CountShape(InferenceContext* c) {
  c->set_output(0, c->Vector(3));
  return absl::OkStatus();
}

absl::Status ShapeOfKeys(InferenceContext* c) {
  c->set_output(0, c->input(1));
  return absl::OkStatus();
}

absl::Status EvictShapes(InferenceContext* c) {
  c->set_output(0, c->Vector(c->UnknownDim()));
  return SetRowsShape(c, 1, c->output(0));
}

absl::Status ExportShapes(InferenceContext* c) {
  TF_RETURN_IF_ERROR(EvictShapes(c));
  const ShapeHandle keys = c->output(0);
  for (int i : {2, 3}) c->set_output(i, keys);
  for (int i = 4; i < c->num_outputs(); ++i) TF_RETURN_IF_ERROR(SetRowsShape(c, i, keys));
  return absl::OkStatus();
}

REGISTER_KERNEL_BUILDER(Name("LockstepDynamicTableCount").Device(tf::DEVICE_CPU), CountKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepDynamicTableCounts").Device(tf::DEVICE_CPU), CountsKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepDynamicTableExport").Device(tf::DEVICE_CPU), ExportKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepDynamicTableEvict").Device(tf::DEVICE_CPU), EvictKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepDynamicTableInsert").Device(tf::DEVICE_CPU), InsertKernel);

REGISTER_OP("LockstepDynamicTableCount")
    .Input("table: resource")
    .Output("counts: int64")
    .SetIsStateful()
    .SetShapeFn(CountShape)
    .Doc(R"doc(
Returns the numbers of admitted keys and of candidates, and the bytes of memory.
)doc");

REGISTER_OP("LockstepDynamicTableCounts")
    .Input("table: resource")
    .Input("keys: Tkeys")
    .Output("counts: int64")
    .Attr("Tkeys: {int32, int64, string}")
    .Attr("of: {'frequency', 'version', 'seconds'}")
    .SetIsStateful()
    .SetShapeFn(ShapeOfKeys)
    .Doc(R"doc(
Returns how often keys were seen, or in which step or second (of Unix' clock) last; 0 for missing keys.
FailedPrecondition if it is not recorded.
)doc");

REGISTER_OP("LockstepDynamicTableExport")
    .Input("table: resource")
    .Output("keys: Tkeys")
    .Output("rows: float")
    .Output("frequencies: int64")
    .Output("versions: int64")
    .Output("slot_values: num_slots * float")
    .Attr("Tkeys: {int64, string}")
    .Attr("num_slots: int >= 0 = 0")
    .Attr("slots: list(string) = []")
    .SetIsStateful()
    .SetShapeFn(ExportShapes)
    .Doc(R"doc(
Returns all admitted keys at one moment, ascending. Copies the whole table.
)doc");

REGISTER_OP("LockstepDynamicTableEvict")
    .Input("table: resource")
    .Output("keys: Tkeys")
    .Output("rows: float")
    .Attr("Tkeys: {int64, string}")
    .Attr("keeps_last_lookup_alone: bool = false")
    .SetIsStateful()
    .SetShapeFn(EvictShapes)
    .Doc(R"doc(
Evicts keys by the table's options now, as the end of a step does, and returns them with their last rows,
ascending. FailedPrecondition for a table without a budget.

keeps_last_lookup_alone: keys of earlier lookups may go as well, also those of this step.
)doc");

REGISTER_OP("LockstepDynamicTableInsert")
    .Input("table: resource")
    .Input("keys: Tkeys")
    .Input("rows: float")
    .Input("frequencies: int64")
    .Input("versions: int64")
    .Attr("Tkeys: {int32, int64, string}")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(R"doc(
Inserts or overwrites rows, as admitted keys; their slots get initial values.

frequencies: [N] or empty. The same for versions; if empty, they are the present step.
)doc");

}  // namespace
}  // namespace lockstep
