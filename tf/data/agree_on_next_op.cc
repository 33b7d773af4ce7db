// Ends the input of all ranks in the same step. Ranks may have different numbers of batches; a rank that ran out and
// left would leave the others waiting in the step's next exchange. So each says, before the step, whether it has a
// batch, and all do the same: an allreduce of one byte, which travels inside of the announcement (docs/algorithms.md).
//
// Who has none but has to go on gets an empty batch from its caller in Python; this op only says so. The end is
// OUT_OF_RANGE, as that of any dataset, so that sessions and loops end as they always do.
#include <memory>

#include "absl/strings/str_cat.h"
#include "tf/comm/collective_kernel.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// A byte over the wire decides for all ranks whether the data goes on. The message says whether this rank had one left.
class AgreeOnNextKernel : public CollectiveKernel {
 public:
  explicit AgreeOnNextKernel(tf::OpKernelConstruction* construction) : CollectiveKernel(construction) {
    bool drop_remainder;
    OP_REQUIRES_OK(construction, construction->GetAttr("drop_remainder", &drop_remainder));
    // On bool, min is "all have a batch" and max is "any has".
    reduction_ = drop_remainder ? ReduceOp::kMin : ReduceOp::kMax;
  }

 protected:
  Result<Exchange> Prepare(const Call& call) override {
    tf::OpKernelContext* const context = call.context;
    // Copied into the Exchange: the byte that is sent.
    const bool mine = context->input(0).scalar<bool>()();
    tf::Tensor* go_on = nullptr;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_output(0, tf::TensorShape({}), &go_on)));
    return Exchange([this, mine, go_on](Communicator& communicator) -> Status {
      LOCKSTEP_RETURN_IF_ERROR(
          communicator.AllReduce(collective_name(), reduction_, DType::kBool, 1, &mine, Data(*go_on)));
      if (go_on->scalar<bool>()()) return OkStatus();
      return OutOfRange(absl::StrCat("End of sequence: rank ", communicator.rank(), mine ? " still has" : " has no",
                                     " batch, and the ranks end together"));
    });
  }

 private:
  ReduceOp reduction_;
};

LOCKSTEP_COLLECTIVE_KERNEL("LockstepAgreeOnNext", AgreeOnNextKernel);

LOCKSTEP_COLLECTIVE_OP("LockstepAgreeOnNext")
    .Input("has_value: bool")
    .Output("go_on: bool")
    .Attr("drop_remainder: bool = true")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle scalar;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &scalar));
      c->set_output(0, scalar);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Ends the input of all ranks in the same step: OUT_OF_RANGE on every rank where the data ends.

has_value: whether this rank has a batch.
go_on: true.
drop_remainder: whether the data ends with the first rank's, rather than with the last's.
)doc");

}  // namespace
}  // namespace lockstep
