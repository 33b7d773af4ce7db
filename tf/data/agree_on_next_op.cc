// Ends the input of all ranks in the same step. Ranks may have different numbers of batches; a rank that ran out and
// left would leave the others waiting in the step's next exchange. So each says, before the step, whether it has a
// batch for it and for the one after, and all do the same: an allreduce of two bytes, which travels inside of the
// announcement (docs/algorithms.md).
//
// Who has none but has to go on gets an empty batch from its caller in Python; this op only says so. The end is
// OUT_OF_RANGE, as that of any dataset, so that sessions and loops end as they always do. Sessions of the job end
// before, by `last`.
#include <array>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "tf/comm/collective_kernel.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// Eagerly a node has no name but its type's.
std::string NameOf(tf::OpKernelConstruction* construction) {
  std::string title;
  construction->SetStatus(construction->GetAttr("title", &title));
  return title.empty() ? CanonicalName(construction->def().name()) : title;
}

// Two bytes over the wire decide for all ranks whether the data goes on. The message says whether this rank had a batch
// left.
class AgreeOnNextKernel : public CollectiveKernel {
 public:
  explicit AgreeOnNextKernel(tf::OpKernelConstruction* construction)
      : CollectiveKernel(construction, NameOf(construction)) {
    bool drop_remainder;
    OP_REQUIRES_OK(construction, construction->GetAttr("drop_remainder", &drop_remainder));
    // On bool, min is "all have a batch" and max is "any has".
    reduction_ = drop_remainder ? ReduceOp::kMin : ReduceOp::kMax;
  }

 protected:
  Result<Exchange> Prepare(const Call& call) override {
    tf::OpKernelContext* const context = call.context;
    // Copied into the Exchange: the bytes that are sent.
    const std::array<bool, 2> mine = {context->input(0).scalar<bool>()(), context->input(1).scalar<bool>()()};
    tf::Tensor *go_on = nullptr, *last = nullptr;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_output(0, tf::TensorShape({}), &go_on)));
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_output(1, tf::TensorShape({}), &last)));
    return Exchange([this, mine, go_on, last](Communicator& communicator) -> Status {
      std::array<bool, 2> agreed;
      LOCKSTEP_RETURN_IF_ERROR(
          communicator.AllReduce(collective_name(), reduction_, DType::kBool, 2, mine.data(), agreed.data()));
      go_on->scalar<bool>()() = agreed[0];
      last->scalar<bool>()() = !agreed[1];
      if (agreed[0]) return OkStatus();
      return OutOfRange(absl::StrCat("End of sequence: rank ", communicator.rank(), mine[0] ? " still has" : " has no",
                                     " batch, and the ranks end together"));
    });
  }

 private:
  ReduceOp reduction_;
};

LOCKSTEP_COLLECTIVE_KERNEL("LockstepAgreeOnNext", AgreeOnNextKernel);

LOCKSTEP_COLLECTIVE_OP("LockstepAgreeOnNext")
    .Input("has_value: bool")
    .Input("has_next: bool")
    .Output("go_on: bool")
    .Output("last: bool")
    .Attr("drop_remainder: bool = true")
    .Attr("title: string = ''")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle scalar;
      for (int i = 0; i < 2; ++i) {
        TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &scalar));
        c->set_output(i, scalar);
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Ends the input of all ranks in the same step: OUT_OF_RANGE on every rank where the data ends.

has_value: whether this rank has a batch.
has_next: whether it will have one for the step after; not read where nobody asks for `last`.
go_on: true.
last: whether the data ends after this step.
drop_remainder: whether the data ends with the first rank's, rather than with the last's.
title: what errors call it; the node's name where it is empty.
)doc");

}  // namespace
}  // namespace lockstep
