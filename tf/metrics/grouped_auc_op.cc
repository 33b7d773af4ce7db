// Computes a batch's contribution to a mean of AUCs over groups (core/metrics/grouped_auc.h). It does not communicate:
// the metric in Python sums the result over the ranks.
#include "absl/strings/str_cat.h"
#include "core/metrics/grouped_auc.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/bridge/convert.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

class GroupedAucKernel : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& labels = context->input(0);
    const tf::Tensor& predictions = context->input(1);
    const tf::Tensor& groups = context->input(2);
    const bool match = labels.dims() == 1 && labels.shape() == predictions.shape() && labels.shape() == groups.shape();
    OP_REQUIRES(context, match,
                absl::InvalidArgumentError(
                    absl::StrCat("gauc '", name(), "': got labels of shape ", labels.shape().DebugString(),
                                 ", predictions ", predictions.shape().DebugString(), " and groups ",
                                 groups.shape().DebugString(), ", wanted one of each per sample")));
    Result<GroupedAuc> sum = ComputeGroupedAuc({labels.NumElements(), labels.flat<bool>().data(),
                                                predictions.flat<double>().data(), groups.flat<int64_t>().data()});
    OP_REQUIRES_OK(context, ToTensorFlow(sum.status().WithPrefix(absl::StrCat("gauc '", name(), "': "))));
    tf::Tensor* added = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({2}), &added));
    added->vec<double>()(0) = sum->weighted_auc;
    added->vec<double>()(1) = sum->samples;
  }
};

REGISTER_KERNEL_BUILDER(Name("LockstepGroupedAuc").Device(tf::DEVICE_CPU), GroupedAucKernel);

REGISTER_OP("LockstepGroupedAuc")
    .Input("labels: bool")
    .Input("predictions: double")
    .Input("groups: int64")
    .Output("added: double")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle samples;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &samples));
      TF_RETURN_IF_ERROR(c->Merge(samples, c->input(1), &samples));
      TF_RETURN_IF_ERROR(c->Merge(samples, c->input(2), &samples));
      c->set_output(0, c->Vector(2));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Computes, over the groups of a batch, the sum of samples times AUC, and the sum of samples.

labels: [N], whether a sample is positive.
predictions: [N], any numbers except NaN.
groups: [N]; a run of equal ones is a group. Groups of one class are left out.
added: [2], the two sums.
)doc");

}  // namespace
}  // namespace lockstep
