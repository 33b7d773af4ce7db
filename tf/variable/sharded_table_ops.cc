// Ops on a whole sharded table (core/sharding/table.h): gathering it, for reads that are not lookups. The number of
// rows and their placement are attributes, because a shard's shape does not tell them. They are part of the
// collective's name, so that ranks whose tables differ get an error. (tf/checkpoint/shard_ops.cc writes and restores
// tables.)
//
//   op                    in                 out                gradient
//   LockstepGatherTable   [L, ...]           [num_rows, ...]    LockstepReduceTable
//   LockstepReduceTable   [num_rows, ...]    [L, ...]           LockstepGatherTable
//
// L is this rank's LocalRows of num_rows; the gradients are registered in Python. An exchange here is several
// collectives with one name, one for each step of kTableStepBytes. All ranks count the steps alike.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/sharding/placement.h"
#include "core/sharding/table.h"
#include "tf/comm/collective_kernel.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

// Base of ops from one tensor of rows to another. `InRows` and `OutRows` return the numbers of rows on a rank, and
// `Run` fills the output. The base checks the input, allocates the output and makes the name.
class TableKernel : public CollectiveKernel {
 public:
  explicit TableKernel(tf::OpKernelConstruction* construction) : CollectiveKernel(construction) {
    int64_t rows = 0, block = 1, first = 0;
    OP_REQUIRES_OK(construction, construction->GetAttr("num_rows", &rows));
    OP_REQUIRES_OK(construction, construction->GetAttr("block", &block));
    OP_REQUIRES_OK(construction, construction->GetAttr("first_rank", &first));
    placement_ = Placement(rows, block, static_cast<int>(first));
  }

 protected:
  // The arguments of Run. They live until the exchange has ended.
  struct Rows {
    const tf::Tensor& in;
    void* out;
    int64_t width;  // elements of a row
    int64_t row_bytes;
  };

  // Called in Prepare, on TensorFlow's thread.
  virtual int64_t InRows(const Communicator& communicator) const = 0;
  virtual int64_t OutRows(const Communicator& communicator) const = 0;
  // Called on the lane.
  virtual Status Run(Communicator& communicator, const std::string& name, const Rows& rows) const = 0;

  const Placement& placement() const { return placement_; }
  int64_t OwnRows(const Communicator& communicator) const {
    return placement_.LocalRows(communicator.rank(), communicator.size());
  }

  // A shard of the wrong size is found here and declined: INVALID_ARGUMENT on all ranks. The row's shape is part of the
  // name, so ranks whose tables have other dimensions get an error instead of wrong rows.
  Result<Exchange> Prepare(const Call& call) final {
    const Communicator& communicator = call.engine.communicator();
    if (placement_.first >= communicator.size()) {
      return InvalidArgument(absl::StrCat(type_string(), " '", name(), "': the rows begin on rank ", placement_.first,
                                          "; the job has ", communicator.size(), " ranks"));
    }
    const tf::Tensor& in = call.context->input(0);
    if (in.dims() < 1 || in.dim_size(0) != InRows(communicator)) {
      return InvalidArgument(absl::StrCat(type_string(), " '", name(), "': got shape ", in.shape().DebugString(),
                                          ", wanted ", InRows(communicator), " rows: the table has ", placement_.rows,
                                          " on ", communicator.size(), " ranks"));
    }
    tf::TensorShape shape = in.shape();
    shape.RemoveDim(0);
    const int64_t width = shape.num_elements();
    std::string collective = absl::StrCat(collective_name(), " of ", placement_.rows, " rows ", shape.DebugString());
    if (placement_.block > 1 || placement_.first > 0) {
      absl::StrAppend(&collective, " in blocks of ", placement_.block, " from rank ", placement_.first, " on");
    }
    shape.InsertDim(0, OutRows(communicator));
    tf::Tensor* out = nullptr;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(call.context->allocate_output(0, shape, &out)));
    const Rows rows{in, Data(*out), width, width * tf::DataTypeSize(in.dtype())};
    return Exchange([this, rows, collective = std::move(collective)](Communicator& communicator) {
      return Run(communicator, collective, rows);
    });
  }

 private:
  Placement placement_{0};
};

// Gives every rank the whole table: for matmul, a regularizer, or reading the values.
class GatherTableKernel : public TableKernel {
 public:
  using TableKernel::TableKernel;

 protected:
  int64_t InRows(const Communicator& communicator) const override { return OwnRows(communicator); }
  int64_t OutRows(const Communicator& communicator) const override { return placement().rows; }
  Status Run(Communicator& communicator, const std::string& name, const Rows& rows) const override {
    return GatherTable(communicator, name, {placement(), rows.row_bytes}, Data(rows.in), rows.out);
  }
};

class ReduceTableKernel : public TableKernel {
 public:
  using TableKernel::TableKernel;

 protected:
  int64_t InRows(const Communicator& communicator) const override { return placement().rows; }
  int64_t OutRows(const Communicator& communicator) const override { return OwnRows(communicator); }
  Status Run(Communicator& communicator, const std::string& name, const Rows& rows) const override {
    LOCKSTEP_ASSIGN_OR_RETURN(const DType dtype, ToDType(rows.in.dtype()));
    return ReduceTable(communicator, name, dtype, placement(), rows.width, Data(rows.in), rows.out);
  }
};

// Sets the input's shape with another number of rows, for shape inference.
absl::Status WithRows(InferenceContext* c, tf::shape_inference::DimensionOrConstant rows) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &shape));
  TF_RETURN_IF_ERROR(c->ReplaceDim(shape, 0, c->MakeDim(rows), &shape));
  c->set_output(0, shape);
  return absl::OkStatus();
}

LOCKSTEP_COLLECTIVE_KERNEL("LockstepGatherTable", GatherTableKernel);
LOCKSTEP_COLLECTIVE_KERNEL("LockstepReduceTable", ReduceTableKernel);

LOCKSTEP_COLLECTIVE_OP("LockstepGatherTable")
    .Input("rows: T")
    .Output("table: T")
    .Attr("T: " LOCKSTEP_DTYPES)
    .Attr("num_rows: int >= 0")
    .Attr("block: int >= 1 = 1")
    .Attr("first_rank: int >= 0 = 0")
    .SetShapeFn([](InferenceContext* c) {
      int64_t rows = 0;
      TF_RETURN_IF_ERROR(c->GetAttr("num_rows", &rows));
      return WithRows(c, rows);
    })
    .Doc(R"doc(
Gives every rank the whole table.

rows: [L, ...]; this rank's rows in training.
table: [num_rows, ...]; by id.
)doc");

LOCKSTEP_COLLECTIVE_OP("LockstepReduceTable")
    .Input("gradient: T")
    .Output("row_gradients: T")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("num_rows: int >= 0")
    .Attr("block: int >= 1 = 1")
    .Attr("first_rank: int >= 0 = 0")
    .SetShapeFn([](InferenceContext* c) { return WithRows(c, c->UnknownDim()); })
    .Doc(R"doc(
Computes LockstepGatherTable's gradient: sums the ranks' gradients in rank order; each rank gets those of its rows.

gradient: [num_rows, ...]; by id.
row_gradients: [L, ...]; those of this rank's rows in training.
)doc");

}  // namespace
}  // namespace lockstep
