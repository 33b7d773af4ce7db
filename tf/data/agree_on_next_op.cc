// Ends the input of all ranks in the same step. Ranks may have different numbers of batches. If a rank left when it ran
// out of data, the others would wait in the step's next exchange. So before the step, each rank tells whether it has a
// batch for this step and for the next one, and all ranks decide alike. This is an allreduce of two bytes, which fits
// into the announcement of a collective (docs/algorithms.md).
//
// A rank without a batch that has to continue gets an empty batch from its caller in Python; this op only reports it.
// The end is OUT_OF_RANGE, as for any dataset, so sessions and loops end as usual. Sessions of the job end one step
// earlier, by `last`.
#include <array>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "tf/comm/collective_kernel.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// Two bytes decide for all ranks whether the data continues. The message tells whether this rank had a batch left.
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
    // Copied into the Exchange: the bytes to send.
    const std::array<bool, 2> mine = {context->input(0).scalar<bool>()(), context->input(1).scalar<bool>()()};
    tf::Tensor *proceed = nullptr, *last = nullptr;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_output(0, tf::TensorShape({}), &proceed)));
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_output(1, tf::TensorShape({}), &last)));
    return Exchange([this, mine, proceed, last](Communicator& communicator) -> Status {
      std::array<bool, 2> agreed;
      LOCKSTEP_RETURN_IF_ERROR(
          communicator.AllReduce(collective_name(), reduction_, DType::kBool, 2, mine.data(), agreed.data()));
      proceed->scalar<bool>()() = agreed[0];
      last->scalar<bool>()() = !agreed[1];
      if (agreed[0]) return OkStatus();
      return OutOfRange(absl::StrCat("End of sequence: rank ", communicator.rank(),
                                     mine[0] ? " still has a" : " has no", " batch, and the ranks end together"));
    });
  }

 private:
  ReduceOp reduction_;
};

LOCKSTEP_COLLECTIVE_KERNEL("LockstepAgreeOnNext", AgreeOnNextKernel);

LOCKSTEP_COLLECTIVE_OP("LockstepAgreeOnNext")
    .Input("has_value: bool")
    .Input("has_next: bool")
    .Output("proceed: bool")
    .Output("last: bool")
    .Attr("drop_remainder: bool = true")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle scalar;
      for (int i = 0; i < 2; ++i) {
        TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &scalar));
        c->set_output(i, scalar);
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Ends the input of all ranks in the same step, by OUT_OF_RANGE on every rank.

has_value: whether this rank has a batch.
has_next: whether it will have one for the next step; not read if `last` is not used.
proceed: true.
last: whether the data ends after this step.
drop_remainder: whether the data ends with the first rank that runs out, instead of the last one.
)doc");

}  // namespace
}  // namespace lockstep
