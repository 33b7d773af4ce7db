// Collectives that exchange rows (slices of dimension 0): allgather, alltoall and reducescatter. Also the barrier,
// which exchanges nothing.
//
//   2 ranks, rows a b c on rank 0 and x y z on rank 1      rank 0 gets      rank 1 gets      counts, splits
//   allgather                                              a b c x y z      a b c x y z      3 3 on both
//   alltoall, rank 0 splits 1 2, rank 1 splits 2 1         a x y            b c z            1 2; 2 1
//   reducescatter of the sum, counts 2 1 on both           a+x b+y          c+z
//
// The rows of all ranks have the same shape and type; only their numbers differ. The shape is part of the collective's
// name, because the communicator compares names but has no shapes. Inputs are passed to the communicator without a
// copy. It allocates outputs as soon as their size is known (Allocate), so kernels copy nothing themselves.
//
// Declined, so that every rank raises it: a scalar, or splits or counts that are not [R] or do not add up to the rows
// (InvalidArgument). Found by the communicator: another shape or name on another rank, and different counts in
// reducescatter (FailedPrecondition).
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tf/comm/collective_kernel.h"
#include "tf/comm/rows.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

// Returns an Allocate for output 0, [sum(counts)] + row, that also writes the ranks' counts, [R], to output 1.
Allocate AllocateWithCounts(tf::OpKernelContext* context, const tf::TensorShape& row) {
  return [context, rows = AllocateOutput(context, 0, row)](std::span<const int64_t> counts) -> Result<void*> {
    tf::Tensor* output = nullptr;
    const tf::TensorShape shape({static_cast<int64_t>(counts.size())});
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_output(1, shape, &output)));
    std::copy(counts.begin(), counts.end(), output->flat<int64_t>().data());
    return rows(counts);
  };
}

// Both outputs are made in the exchange, because the peers' numbers of rows are not known before.
class AllGatherKernel : public CollectiveKernel {
 public:
  using CollectiveKernel::CollectiveKernel;

 protected:
  Result<Exchange> Prepare(const Call& call) override {
    LOCKSTEP_ASSIGN_OR_RETURN(Rows rows, AsRows(call.context->input(0), "allgather", collective_name(), name()));
    return Exchange([context = call.context, rows = std::move(rows)](Communicator& communicator) {
      return communicator.AllGatherV(rows.name, rows.item, rows.count, rows.data,
                                     AllocateWithCounts(context, rows.row));
    });
  }
};

// A rank knows what it sends; the exchange tells it what it receives.
class AllToAllKernel : public CollectiveKernel {
 public:
  using CollectiveKernel::CollectiveKernel;

 protected:
  Result<Exchange> Prepare(const Call& call) override {
    LOCKSTEP_ASSIGN_OR_RETURN(Rows rows, AsRows(call.context->input(0), "alltoall", collective_name(), name()));
    LOCKSTEP_ASSIGN_OR_RETURN(auto splits, RowCounts(call.context->input(1), call.engine.communicator().size(),
                                                     rows.count, absl::StrCat("alltoall '", name(), "': splits")));
    return Exchange(
        [context = call.context, rows = std::move(rows), splits = std::move(splits)](Communicator& communicator) {
          return communicator.AllToAllV(rows.name, rows.item, splits, rows.data, AllocateWithCounts(context, rows.row));
        });
  }
};

// All sizes are known before. The counts are an input, because only the caller knows which rows belong together.
class ReduceScatterKernel : public CollectiveKernel {
 public:
  explicit ReduceScatterKernel(tf::OpKernelConstruction* construction)
      : CollectiveKernel(construction), reduce_op_(ReduceOpOf(construction)) {}

 protected:
  Result<Exchange> Prepare(const Call& call) override {
    LOCKSTEP_ASSIGN_OR_RETURN(Rows rows, AsRows(call.context->input(0), "reducescatter", collective_name(), name()));
    const Communicator& communicator = call.engine.communicator();
    LOCKSTEP_ASSIGN_OR_RETURN(auto counts, RowCounts(call.context->input(1), communicator.size(), rows.count,
                                                     absl::StrCat("reducescatter '", name(), "': counts")));
    // Unlike in the others, the size of the output is known before: it is this rank's count.
    LOCKSTEP_ASSIGN_OR_RETURN(void* out,
                              AllocateOutput(call.context, 0, rows.row)(std::span(&counts[communicator.rank()], 1)));
    // The communicator reduces elements and has no rows.
    for (int64_t& count : counts) count *= rows.item.width;
    return Exchange([this, out, rows = std::move(rows), counts = std::move(counts)](Communicator& communicator) {
      return communicator.ReduceScatter(rows.name, reduce_op_, rows.item.dtype, counts, rows.data, out);
    });
  }

 private:
  const ReduceOp reduce_op_;
};

// For programs that have to wait for each other without data; no lookup or gradient needs it.
class BarrierKernel : public CollectiveKernel {
 public:
  using CollectiveKernel::CollectiveKernel;

 protected:
  Result<Exchange> Prepare(const Call& call) override {
    return Exchange([this](Communicator& communicator) { return communicator.Barrier(collective_name()); });
  }
};

// Sets output 0 to rows like input 0's, of unknown number, and output 1 to a number for each rank.
absl::Status RowsAndCounts(InferenceContext* c) {
  ShapeHandle rows;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &rows));
  TF_RETURN_IF_ERROR(c->ReplaceDim(rows, 0, c->UnknownDim(), &rows));
  c->set_output(0, rows);
  c->set_output(1, c->Vector(c->UnknownDim()));
  return absl::OkStatus();
}

LOCKSTEP_COLLECTIVE_KERNEL("LockstepAllGather", AllGatherKernel);
LOCKSTEP_COLLECTIVE_KERNEL("LockstepAllToAll", AllToAllKernel);
LOCKSTEP_COLLECTIVE_KERNEL("LockstepReduceScatter", ReduceScatterKernel);
LOCKSTEP_COLLECTIVE_KERNEL("LockstepBarrier", BarrierKernel);

LOCKSTEP_COLLECTIVE_OP("LockstepAllGather")
    .Input("rows: T")
    .Output("gathered: T")
    .Output("counts: int64")
    .Attr("T: " LOCKSTEP_DTYPES)
    .SetShapeFn(RowsAndCounts)
    .Doc(R"doc(
Gives every rank the rows of all ranks, in rank order.

rows: [n, ...]; n may differ between ranks, the other dimensions must be equal.
gathered: [sum of all n, ...].
counts: [R]; the n of each rank.
)doc");

LOCKSTEP_COLLECTIVE_OP("LockstepAllToAll")
    .Input("rows: T")
    .Input("splits: int64")
    .Output("received: T")
    .Output("received_splits: int64")
    .Attr("T: " LOCKSTEP_DTYPES)
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle splits;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &splits));
      TF_RETURN_IF_ERROR(RowsAndCounts(c));
      c->set_output(1, splits);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Sends each rank some rows and receives some from each.

rows: [n, ...]; the first splits[0] rows go to rank 0, the next splits[1] to rank 1, and so on.
splits: [R]; at least 0 each, n in sum.
received: [sum of received_splits, ...]; in rank order.
received_splits: [R]; the number of rows from each rank.
)doc");

LOCKSTEP_COLLECTIVE_OP("LockstepReduceScatter")
    .Input("rows: T")
    .Input("counts: int64")
    .Output("mine: T")
    .Attr("T: " LOCKSTEP_DTYPES)
    .Attr(LOCKSTEP_REDUCE_OP_ATTR)
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle rows;
      ShapeHandle counts;
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &rows));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &counts));
      TF_RETURN_IF_ERROR(c->ReplaceDim(rows, 0, c->UnknownDim(), &rows));
      c->set_output(0, rows);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Reduces rows over all ranks and leaves each rank some of them.

rows: [n, ...]; the same shape on all ranks.
counts: [R]; the first counts[0] rows stay with rank 0, the next counts[1] with rank 1, and so on; the same on all ranks.
mine: [counts[rank], ...].
)doc");

LOCKSTEP_COLLECTIVE_OP("LockstepBarrier").SetShapeFn(tf::shape_inference::NoOutputs).Doc(R"doc(
Ends when all ranks have reached it.
)doc");

}  // namespace
}  // namespace lockstep
