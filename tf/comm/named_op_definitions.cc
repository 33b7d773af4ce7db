// The inputs, outputs and attributes of the ops in named_ops.cc.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/comm/collective_op.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;
using tf::shape_inference::InferenceContext;

absl::Status SameShapes(InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(i));
  return absl::OkStatus();
}

// Sets each tensor's own shape with an unknown number of rows.
absl::Status OtherRows(InferenceContext* c, int tensors) {
  for (int i = 0; i < tensors; ++i) {
    tf::shape_inference::ShapeHandle shape = c->input(i);
    // A scalar is refused at run time, on all ranks.
    if (c->RankKnown(shape) && c->Rank(shape) > 0) TF_RETURN_IF_ERROR(c->ReplaceDim(shape, 0, c->UnknownDim(), &shape));
    c->set_output(i, c->RankKnown(shape) && c->Rank(shape) == 0 ? c->UnknownShape() : shape);
  }
  return absl::OkStatus();
}

absl::Status OtherRowsOfAll(InferenceContext* c) { return OtherRows(c, c->num_outputs()); }

absl::Status AllToAllShapes(InferenceContext* c) {
  const int tensors = c->num_outputs() / 2;
  for (int i = 0; i < tensors; ++i) c->set_output(tensors + i, c->Vector(c->UnknownDim()));
  return OtherRows(c, tensors);
}

// The attributes of all of them:
//
//   process_set          the ranks that take part; 0 is all ranks
//   names                the name of each tensor, equal on all ranks; an empty name stands for the node's name
//   called               [N], the names as an input instead of an attribute. It is for eager calls: TensorFlow would
//                        make and keep a kernel for each value of an attribute
//   numbered             the name gets the number of earlier numbered calls of its kind: for eager calls without a name
//   together             all tensors of the list are exchanged, or none
//   gradient             the losses whose gradients are computed (lockstep/_src/collectives/named.py)
//   prescale, postscale  doubles as text, with all digits, which an attribute of type float would not keep
#define LOCKSTEP_NAMED_OP(op)       \
  REGISTER_OP(op)                   \
      .SetIsStateful()              \
      .Attr("process_set: int = 0") \
      .Attr("names: list(string)")  \
      .Attr("numbered: bool = false")
#define LOCKSTEP_CALLED Input("called: M * string").Attr("M: int >= 0 = 0")
#define LOCKSTEP_NAMED_LIST_OP(op)               \
  LOCKSTEP_NAMED_OP(op)                          \
      .Input("tensors: T")                       \
      .LOCKSTEP_CALLED.Output("results: T")      \
      .Attr("T: list(" LOCKSTEP_DTYPES ") >= 1") \
      .Attr("together: bool = true")             \
      .Attr("gradient: {'sum', 'mean', 'times'} = 'sum'")
#define LOCKSTEP_NAMED_REDUCTION_OP(op)                                              \
  LOCKSTEP_NAMED_LIST_OP(op)                                                         \
      .Attr("reduction: {'sum', 'mean', 'min', 'max', 'product', 'adasum'} = 'sum'") \
      .Attr("prescale: string = '1.0'")                                              \
      .Attr("postscale: string = '1.0'")

LOCKSTEP_NAMED_REDUCTION_OP("LockstepNamedAllReduce").SetShapeFn(SameShapes).Doc(R"doc(
Reduces each tensor over the ranks: postscale * reduction of (prescale * tensor).
)doc");

LOCKSTEP_NAMED_REDUCTION_OP("LockstepNamedReduceScatter").SetShapeFn(OtherRowsOfAll).Doc(R"doc(
Reduces each tensor over the ranks and divides its rows among them; the first ranks get one more if needed.
)doc");

LOCKSTEP_NAMED_LIST_OP("LockstepNamedAllGather").SetShapeFn(OtherRowsOfAll).Doc(R"doc(
Gives every rank the rows of all ranks, in the order of ranks.
)doc");

LOCKSTEP_NAMED_LIST_OP("LockstepNamedAllToAll")
    .Input("splits: N * Tsplits")
    .Output("received: N * Tsplits")
    .Attr("N: int >= 1")
    .Attr("Tsplits: {int32, int64}")
    .SetShapeFn(AllToAllShapes)
    .Doc(R"doc(
Sends each rank some rows of each tensor, and receives some from each.

splits: for each tensor [R], the number of rows for each rank, or [0]: equal parts. Further rows are dropped.
received: [R], the number of rows from each rank.
)doc");

LOCKSTEP_NAMED_LIST_OP("LockstepNamedBroadcast").Attr("root: int = 0").SetShapeFn(SameShapes).Doc(R"doc(
Gives every rank the tensors of `root`, a rank of the process set.
)doc");

LOCKSTEP_NAMED_OP("LockstepNamedBarrier").LOCKSTEP_CALLED.SetShapeFn(tf::shape_inference::NoOutputs).Doc(R"doc(
Waits until all ranks have reached it.
)doc");

LOCKSTEP_NAMED_OP("LockstepNamedJoin").Output("last: int32").SetShapeFn(tf::shape_inference::ScalarShape).Doc(R"doc(
Takes part in the other ranks' all-reduces with zeros until all have joined. Returns the rank that joined last.
)doc");

REGISTER_OP("LockstepNamedPlace")
    .SetIsStateful()
    .Attr("process_set: int = 0")
    .Output("rank: int32")
    .Output("size: int32")
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < 2; ++i) c->set_output(i, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Returns this process's rank in a process set and the set's size at run time.
)doc");

}  // namespace
}  // namespace lockstep
