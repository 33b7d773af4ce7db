// The communicating steps of a lookup in a sharded table (core/sharding/lookup.h), and the check of ids where there is
// nothing to communicate:
//
//   ids -> LockstepRoute -> ResourceGather of TensorFlow's on the shard -> LockstepCombine -> rows
//                gradient: ... <- ResourceGather's own <- LockstepCombineGradient <-
//
//   tensor          shape             dtype     is
//   ids             [...], N in all   Tids      what is looked up
//   local_rows      [M]               int64     rows of this rank's shard, for all ranks, in rank order
//   inverse         as ids            int32     the place of each id among the U distinct ones
//   send_splits     [R], U in all     int64     how many rows this rank gets from each
//   recv_splits     [R], M in all     int64     how many rows it gives to each
//   rows            [M, ...]          T         of the shard, at local_rows
//   combined        ids + row         T         the row of each id
//   row_gradients   [M, ...]          T         with local_rows, the shard's tf.IndexedSlices
//
// A kernel's Prepare does what a rank can do alone, on TensorFlow's thread and at the same time as other kernels: to
// drop duplicates, to sort, to sum gradients, and all checks. The lane only exchanges, and puts rows in place. Each op
// is one lookup; what it calls takes lists of them.
//
// Between the steps values are ordinary tensors, and whoever rewrites the graph may put others there: so each step
// checks what it gets before it follows an index.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/sharding/lookup.h"
#include "tf/comm/collective_kernel.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

// The attributes by which ids are checked, and messages name the table. The number of rows is that of the whole table,
// which the shard's shape does not tell.
struct TableAttributes {
  explicit TableAttributes(tf::OpKernelConstruction* construction) {
    construction->SetStatus(construction->GetAttr("table", &name));
    construction->SetStatus(construction->GetAttr("num_rows", &rows));
  }

  // Points into `ids` and `inverse`; null where nothing is to be written there.
  LookupIds Lookup(const tf::Tensor& ids, int32_t* inverse) const {
    const DType dtype = ids.dtype() == tf::DT_INT32 ? DType::kInt32 : DType::kInt64;
    return {name, rows, dtype, Data(ids), ids.NumElements(), inverse};
  }

  std::string name;
  int64_t rows = 0;
};

// Splits, [R] if nobody has tampered with them; the checks of the core look.
std::span<const int64_t> AsSpan(const tf::Tensor& splits) {
  return {static_cast<const int64_t*>(Data(splits)), static_cast<size_t>(splits.NumElements())};
}

// Output `index`, owned by the context. RESOURCE_EXHAUSTED where there is no memory.
Result<tf::Tensor*> Allocate(tf::OpKernelContext* context, int index, const tf::TensorShape& shape) {
  tf::Tensor* output = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_output(index, shape, &output)));
  return output;
}

// Inverse and send_splits are known and written before the exchange; local_rows and recv_splits are what comes of it.
// All outputs whose size is known are allocated here, where a failure can still be declined.
//
// An example with 2 ranks: rank 0 looks up 7 4 7, rank 1 looks up 4 6.
//
//             send_splits   recv_splits   inverse   local_rows                       asked by
//   rank 0    1 1           1 2           1 0 1     2 | 2 3     ids 4 | 4 6          rank 0 | rank 1
//   rank 1    2 0           1 0           0 1       3           id  7                rank 0
//
// Row 4 is served twice, once to each rank, and rank 1's part of the shard is read for one id only.
class RouteKernel : public CollectiveKernel {
 public:
  explicit RouteKernel(tf::OpKernelConstruction* construction) : CollectiveKernel(construction), table_(construction) {}

 protected:
  Result<Exchange> Prepare(const Call& call) override {
    tf::OpKernelContext* const context = call.context;
    const int size = call.engine.communicator().size();
    const tf::Tensor& ids = context->input(0);
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * inverse, Allocate(context, 1, ids.shape()));
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * send_splits, Allocate(context, 2, {size}));
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * recv_splits, Allocate(context, 3, {size}));
    const LookupIds lookup = table_.Lookup(ids, static_cast<int32_t*>(Data(*inverse)));
    LOCKSTEP_ASSIGN_OR_RETURN(RoutePlan plan, PlanRoute(size, {&lookup, 1}));
    std::copy(plan.send[0].begin(), plan.send[0].end(), send_splits->flat<int64_t>().data());

    // The plan is shared since an Exchange can be copied, and plans are large.
    return Exchange([this, context, recv = recv_splits->flat<int64_t>().data(),
                     plan = std::make_shared<RoutePlan>(std::move(plan))](Communicator& communicator) -> Status {
      Splits splits;
      LOCKSTEP_RETURN_IF_ERROR(ExchangeRoute(
          communicator, collective_name(), *plan, {&splits, 1}, [context](size_t, int64_t count) -> Result<int64_t*> {
            LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * rows, Allocate(context, 0, {count}));
            return static_cast<int64_t*>(Data(*rows));
          }));
      std::copy(splits.recv.begin(), splits.recv.end(), recv);
      return OkStatus();
    });
  }

 private:
  const TableAttributes table_;
};

// The row lookup's and its gradient's view of the route: where its outputs lie among the inputs of the steps that
// follow it. Valid while the kernel's context is.
struct RouteInputs {
  explicit RouteInputs(tf::OpKernelContext* context)
      : inverse(context->input(1)), send(AsSpan(context->input(2))), recv(AsSpan(context->input(3))) {}

  const int32_t* places() const { return static_cast<const int32_t*>(Data(inverse)); }

  const tf::Tensor& inverse;
  std::span<const int64_t> send;
  std::span<const int64_t> recv;
};

// Any type, as rows are only moved; LOCKSTEP_DTYPES is what tables can have.
class CombineKernel : public CollectiveKernel {
 public:
  using CollectiveKernel::CollectiveKernel;

 protected:
  Result<Exchange> Prepare(const Call& call) override {
    const tf::Tensor& rows = call.context->input(0);
    const RouteInputs route(call.context);
    if (rows.dims() < 1) {
      return InvalidArgument(absl::StrCat("combine '", name(), "': got a scalar, wants rows [M, ...]"));
    }
    tf::TensorShape row = rows.shape();
    row.RemoveDim(0);
    tf::TensorShape shape = route.inverse.shape();
    shape.AppendShape(row);
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * out, Allocate(call.context, 0, shape));
    const LookupRows lookup{route.send,
                            route.recv,
                            row.num_elements() * tf::DataTypeSize(rows.dtype()),
                            Data(rows),
                            rows.dim_size(0),
                            route.places(),
                            route.inverse.NumElements(),
                            Data(*out)};
    // What could be wrong on this rank alone is found here, while it can be declined.
    LOCKSTEP_RETURN_IF_ERROR(CheckRows(call.engine.communicator().size(), {&lookup, 1})
                                 .WithPrefix(absl::StrCat("combine '", name(), "': ")));
    return Exchange([this, lookup](Communicator& communicator) {
      return Combine(communicator, collective_name(), {&lookup, 1});
    });
  }
};

// The sums are made here, before the lane, so that those of different tables overlap. All that is left for the lane is
// to send them.
class CombineGradientKernel : public CollectiveKernel {
 public:
  using CollectiveKernel::CollectiveKernel;

 protected:
  Result<Exchange> Prepare(const Call& call) override {
    const tf::Tensor& gradient = call.context->input(0);
    const RouteInputs route(call.context);
    const std::string who = absl::StrCat("gradient of combine '", name(), "': ");
    // The gradient is [ids..., row...]; what is left after the ids' dimensions is the row.
    // [ids..., row...] against the ids' shape, dimension by dimension: the number of elements alone would let a
    // transposed gradient pass.
    tf::TensorShape row = gradient.shape();
    for (int i = 0; i < route.inverse.dims(); ++i) {
      if (row.dims() == 0 || row.dim_size(0) != route.inverse.dim_size(i)) {
        return InvalidArgument(absl::StrCat(who, "got shape ", gradient.shape().DebugString(), ", wants ",
                                            route.inverse.shape().DebugString(), " and the row's dimensions"));
      }
      row.RemoveDim(0);
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const DType dtype, ToDType(gradient.dtype()));
    // The route has agreed on how much arrives, so that the output can be received into. A negative count is found by
    // the check below.
    int64_t served = 0;
    for (int64_t count : route.recv) served += std::max<int64_t>(0, count);
    tf::TensorShape shape = row;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(shape.InsertDimWithStatus(0, served)).WithPrefix(who));
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * out, Allocate(call.context, 0, shape));
    const LookupGradient lookup{
        route.send, route.recv, dtype, row.num_elements(), Data(gradient), route.places(), route.inverse.NumElements(),
        Data(*out)};
    Result<GradientSums> sums = SumGradients(call.engine.communicator(), {&lookup, 1});
    if (!sums.ok()) return sums.status().WithPrefix(who);
    return Exchange(
        [this, lookup, sums = std::make_shared<GradientSums>(*std::move(sums))](Communicator& communicator) {
          return ExchangeGradients(communicator, collective_name(), {&lookup, 1}, *sums);
        });
  }
};

// On the only rank of a job ids need no route, but the check of their range that a route makes: the message of
// TensorFlow's gather does not name the table, and on a GPU there is none. No collective; hands the ids on, so that the
// gather depends on it.
class CheckIdsKernel : public tf::OpKernel {
 public:
  explicit CheckIdsKernel(tf::OpKernelConstruction* construction) : OpKernel(construction), table_(construction) {}

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& ids = context->input(0);
    OP_REQUIRES_OK(context, ToTensorFlow(CheckIds(table_.Lookup(ids, nullptr))));
    context->set_output(0, ids);
  }

 private:
  const TableAttributes table_;
};

// What is known of shapes before the run: that of inverse is the ids' own. M depends on all ranks' ids, and R on the
// job, which a graph does not tell.
absl::Status RouteShapes(InferenceContext* c) {
  c->set_output(0, c->Vector(c->UnknownDim()));
  c->set_output(1, c->input(0));
  c->set_output(2, c->Vector(c->UnknownDim()));
  c->set_output(3, c->output(2));
  return absl::OkStatus();
}

// The shape of inverse, then that of a row: as tf.gather's.
absl::Status CombineShape(InferenceContext* c) {
  ShapeHandle row, out;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &row));
  TF_RETURN_IF_ERROR(c->Subshape(row, 1, &row));
  TF_RETURN_IF_ERROR(c->Concatenate(c->input(1), row, &out));
  c->set_output(0, out);
  return absl::OkStatus();
}

// The dimensions behind the ids' are the row's; known where both ranks are.
absl::Status CombineGradientShape(InferenceContext* c) {
  ShapeHandle row = c->UnknownShape(), out;
  if (c->RankKnown(c->input(0)) && c->RankKnown(c->input(1))) {
    TF_RETURN_IF_ERROR(c->Subshape(c->input(0), c->Rank(c->input(1)), &row));
  }
  TF_RETURN_IF_ERROR(c->Concatenate(c->Vector(c->UnknownDim()), row, &out));
  c->set_output(0, out);
  return absl::OkStatus();
}

LOCKSTEP_COLLECTIVE_KERNEL("LockstepRoute", RouteKernel);
LOCKSTEP_COLLECTIVE_KERNEL("LockstepCombine", CombineKernel);
LOCKSTEP_COLLECTIVE_KERNEL("LockstepCombineGradient", CombineGradientKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepCheckIds").Device(tf::DEVICE_CPU), CheckIdsKernel);

LOCKSTEP_COLLECTIVE_OP("LockstepRoute")
    .Input("ids: Tids")
    .Output("local_rows: int64")
    .Output("inverse: int32")
    .Output("send_splits: int64")
    .Output("recv_splits: int64")
    .Attr("Tids: {int32, int64}")
    .Attr("num_rows: int >= 0")
    .Attr("table: string")
    .SetShapeFn(RouteShapes)
    .Doc(R"doc(
First step of a lookup: sends each distinct id to the rank that owns its row.

ids: of any shape; each in [0, num_rows), else all ranks fail with InvalidArgument.
local_rows: [M]; the rows of this rank's shard that the ranks ask for, in rank order.
inverse: of the shape of ids; the place of each id among the distinct ones, in order of their owners.
send_splits: [R]; how many distinct ids went to each rank.
recv_splits: [R]; how many came from each rank; M together.
num_rows: rows of the whole table.
table: its name, for messages.
)doc");

LOCKSTEP_COLLECTIVE_OP("LockstepCombine")
    .Input("rows: T")
    .Input("inverse: int32")
    .Input("send_splits: int64")
    .Input("recv_splits: int64")
    .Output("combined: T")
    .Attr("T: " LOCKSTEP_DTYPES)
    .SetShapeFn(CombineShape)
    .Doc(R"doc(
Last step of a lookup: sends rows to the ranks that asked for them, and puts one at the place of each id.

rows: [M, ...]; one for each of the route's local_rows.
inverse: of the route, as are the splits.
combined: the shape of inverse, then that of a row.
)doc");

LOCKSTEP_COLLECTIVE_OP("LockstepCombineGradient")
    .Input("gradient: T")
    .Input("inverse: int32")
    .Input("send_splits: int64")
    .Input("recv_splits: int64")
    .Output("row_gradients: T")
    .Attr("T: {float, double, half, bfloat16}")
    .SetShapeFn(CombineGradientShape)
    .Doc(R"doc(
Gradient of LockstepCombine to its rows: sums this rank's gradients per distinct id and sends them to the owners.

gradient: of the shape of combined.
row_gradients: [M, ...]; in rank order.
)doc");

REGISTER_OP("LockstepCheckIds")
    .Input("ids: Tids")
    .Output("checked: Tids")
    .Attr("Tids: {int32, int64}")
    .Attr("num_rows: int >= 0")
    .Attr("table: string")
    .SetShapeFn(tf::shape_inference::UnchangedShape)
    .Doc(R"doc(
Hands ids on, or fails with InvalidArgument where one is out of [0, num_rows).
)doc");

}  // namespace
}  // namespace lockstep
