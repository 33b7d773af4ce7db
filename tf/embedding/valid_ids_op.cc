// Drops the ids of a lookup that do not count, as tf.nn.safe_embedding_lookup_sparse defines them, in one pass:
//
//   ids -> LockstepValidIds -> valid ids -> distinct rows -> LockstepPool (pooling_ops.cc)
//
//   tensor          shape         dtype                  is
//   ids             [N]           int32, int64, string   the ids of all examples
//   splits          [B + 1]       int64                  where the ids of each example begin; the last is N
//   weights         [N]           float, double          of each id, or none
//   valid_ids       [K]           as ids                 the ids that count; with `fill`, [K + 1] or [K]
//   valid_splits    [B + 1]       int64                  where the valid ids of each example begin; the last is K
//   valid_weights   [K]           as weights             of each valid id
//
// Most batches have no invalid id. They are not copied: the outputs are the inputs.
#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "core/embedding/pooling.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/bridge/convert.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;
using tf::shape_inference::InferenceContext;

// The ids of a lookup, and which of them count. Weight: float or double.
template <typename Id, typename Weight>
struct GivenIds {
  bool IsValid(int64_t i) const {
    bool is_valid = !are_weighed || weights[i] > 0;
    if constexpr (std::is_integral_v<Id>) is_valid &= ids[i] >= 0;
    return is_valid;
  }

  // Visits ids without a branch, so that the loop is vectorised: mostly, this is all that is done.
  bool AreAllValid() const {
    if constexpr (std::is_integral_v<Id>) {
      Id bits = 0;
      for (int64_t i = 0; i < splits.back(); ++i) bits |= ids[i];
      if (bits < 0) return false;
    }
    return !are_weighed || std::all_of(weights.begin(), weights.end(), [](Weight weight) { return weight > 0; });
  }

  int64_t CountValid() const {
    int64_t valid = 0;
    for (int64_t i = 0; i < splits.back(); ++i) valid += IsValid(i) ? 1 : 0;
    return valid;
  }

  bool HasExampleWithoutValidIds() const {
    for (size_t b = 0; b + 1 < splits.size(); ++b) {
      int64_t i = splits[b];
      while (i < splits[b + 1] && !IsValid(i)) ++i;
      if (i == splits[b + 1]) return true;
    }
    return false;
  }

  const Id* ids;                    // [N]; any string is valid
  std::span<const int64_t> splits;  // [B + 1], checked
  std::span<const Weight> weights;  // [N], if there are weights
  bool are_weighed;                 // whether an id is valid only if its weight is positive
};

class ValidIdsKernel : public tf::OpKernel {
 public:
  explicit ValidIdsKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("positive_weights", &positive_weights_));
    OP_REQUIRES_OK(construction, construction->GetAttr("fill", &fill_));
    OP_REQUIRES(construction, construction->num_inputs() <= 3,
                absl::InvalidArgumentError(absl::StrCat("'", construction->def().name(), "': got ",
                                                        construction->num_inputs() - 2, " weights, wanted at most 1")));
  }

  void Compute(tf::OpKernelContext* context) override {
    context->SetStatus(ToTensorFlow(Run(context).WithPrefix(absl::StrCat("'", name(), "': "))));
  }

 private:
  Status Run(tf::OpKernelContext* context) const {
    const tf::Tensor &ids = context->input(0), &splits = context->input(1);
    LOCKSTEP_RETURN_IF_ERROR(CheckSplits(AsSpan<int64_t>(splits), ids.NumElements()));
    if (HasWeights(context) && context->input(2).NumElements() != ids.NumElements()) {
      return InvalidArgument(absl::StrCat("got ", context->input(2).NumElements(), " weights for ", ids.NumElements(),
                                          " ids, wanted one for each"));
    }
    switch (ids.dtype()) {
      case tf::DT_INT32: return Drop<int32_t>(context);
      case tf::DT_INT64: return Drop<int64_t>(context);
      default: return Drop<tf::tstring>(context);
    }
  }

  static bool HasWeights(tf::OpKernelContext* context) { return context->num_inputs() > 2; }

  template <typename Id>
  Status Drop(tf::OpKernelContext* context) const {
    const bool is_double = HasWeights(context) && context->input(2).dtype() == tf::DT_DOUBLE;
    return is_double ? Drop<Id, double>(context) : Drop<Id, float>(context);
  }

  template <typename Id, typename Weight>
  Status Drop(tf::OpKernelContext* context) const {
    const tf::Tensor& given = context->input(0);
    const bool has_weights = HasWeights(context);
    const auto weights = has_weights ? AsSpan<Weight>(context->input(2)) : std::span<const Weight>();
    const GivenIds<Id, Weight> ids = {given.flat<Id>().data(), AsSpan<int64_t>(context->input(1)), weights,
                                      has_weights && positive_weights_};
    const bool fills = fill_ && ids.HasExampleWithoutValidIds();
    if (!fills && ids.AreAllValid()) {
      for (int i = 0; i < context->num_inputs(); ++i) context->set_output(i, context->input(i));
      return OkStatus();
    }
    const int64_t valid = ids.CountValid();
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * valid_ids, AllocateTensor(context, 0, {valid + (fills ? 1 : 0)}));
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * valid_splits, AllocateTensor(context, 1, context->input(1).shape()));
    Weight* valid_weights = nullptr;  // if there are weights
    if (has_weights) {
      LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * out, AllocateTensor(context, 2, {valid}));
      valid_weights = static_cast<Weight*>(Data(*out));
    }
    auto out_ids = valid_ids->flat<Id>();
    auto out_splits = valid_splits->flat<int64_t>();
    int64_t next = 0;
    for (size_t b = 0; b + 1 < ids.splits.size(); ++b) {
      out_splits(b) = next;
      for (int64_t i = ids.splits[b]; i < ids.splits[b + 1]; ++i) {
        if (!ids.IsValid(i)) continue;
        out_ids(next) = ids.ids[i];
        if (has_weights) valid_weights[next] = weights[i];
        ++next;
      }
    }
    out_splits(ids.splits.size() - 1) = next;
    if (fills) out_ids(next) = Id{};
    return OkStatus();
  }

  bool positive_weights_ = false;
  bool fill_ = false;
};

absl::Status ValidIdsShapes(InferenceContext* c) {
  c->set_output(0, c->Vector(c->UnknownDim()));
  c->set_output(1, c->input(1));
  if (c->num_outputs() > 2) c->set_output(2, c->Vector(c->UnknownDim()));
  return absl::OkStatus();
}

REGISTER_KERNEL_BUILDER(Name("LockstepValidIds").Device(tf::DEVICE_CPU), ValidIdsKernel);

REGISTER_OP("LockstepValidIds")
    .Input("ids: Tids")
    .Input("splits: int64")
    .Input("weights: Tweights")
    .Output("valid_ids: Tids")
    .Output("valid_splits: int64")
    .Output("valid_weights: Tweights")
    .Attr("Tids: {int32, int64, string}")
    .Attr("Tweights: list({float, double}) >= 0")
    .Attr("positive_weights: bool")
    .Attr("fill: bool")
    .SetShapeFn(ValidIdsShapes)
    .Doc(R"doc(
Drops ids below 0 and, if weights have to be positive, ids whose weight is not.

ids: [N]; any string is valid.
splits: [B + 1]; where the ids of each example begin.
weights: [N], of each id; or no tensor.
valid_ids: [K]; with `fill`, an id 0 of no example follows if an example has no valid id.
valid_splits: [B + 1]; where the valid ids of each example begin; the last is K.
valid_weights: [K].
positive_weights: whether ids without a positive weight are dropped.
)doc");

}  // namespace
}  // namespace lockstep
