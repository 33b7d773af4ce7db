// Drops the ids of a lookup that do not count, as tf.nn.safe_embedding_lookup_sparse defines them, in one pass:
//
//   ids -> LockstepValidIds -> valid ids -> distinct rows -> LockstepPool (pooling_ops.cc)
//
//   tensor          shape         dtype                  is
//   ids             [N]           int32, int64, string   the ids of all examples
//   splits          [B + 1]       int64                  where the ids of each example begin; the last is N
//   weights         [N]           float, double          of each id, or none
//   problems        []            string                 of the steps before; an error is passed on (problems.h)
//   valid_ids       [K]           as ids                 the ids that count; with `fill`, [K + 1] or [K]
//   valid_splits    [B + 1]       int64                  where the valid ids of each example begin; the last is K
//   problem         []            string                 what is wrong with the inputs, or with the inputs of the steps
//   before valid_weights   [K]           as weights             of each valid id
//
// Lookups that drop no id use the op before an exchange, for its checks. Most batches have no invalid id. They are not
// copied: the outputs are the inputs.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "core/embedding/pooling.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/bridge/convert.h"
#include "tf/lookup/problems.h"

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
    OP_REQUIRES_OK(construction, construction->GetAttr("drops", &drops_));
    OP_REQUIRES_OK(construction, construction->GetAttr("P", &problems_));
    OP_REQUIRES_OK(construction, construction->GetAttr("table", &table_));
    OP_REQUIRES_OK(construction, construction->GetAttr("defers", &defers_));
    weights_ = construction->num_inputs() - 2 - problems_;
    OP_REQUIRES(construction, weights_ == 0 || weights_ == 1,
                absl::InvalidArgumentError(
                    absl::StrCat("'", construction->def().name(), "': got ", weights_, " weights, wanted at most 1")));
  }

  void Compute(tf::OpKernelContext* context) override { context->SetStatus(ToTensorFlow(Run(context))); }

 private:
  static constexpr int kProblem = 2, kWeights = 3;  // outputs

  Status Run(tf::OpKernelContext* context) const {
    Status found = ReportedProblem(context, problems_);
    if (found.ok()) found = Check(context).WithPrefix(absl::StrCat("table '", table_, "': "));
    LOCKSTEP_RETURN_IF_ERROR(ReportProblem(context, kProblem, found, defers_));
    if (!found.ok()) return WriteNoIds(context);
    if (!drops_) return PassOn(context);
    switch (context->input(0).dtype()) {
      case tf::DT_INT32: return Drop<int32_t>(context);
      case tf::DT_INT64: return Drop<int64_t>(context);
      default: return Drop<tf::tstring>(context);
    }
  }

  Status Check(tf::OpKernelContext* context) const {
    const tf::Tensor &ids = context->input(0), &splits = context->input(1);
    LOCKSTEP_RETURN_IF_ERROR(CheckSplits(AsSpan<int64_t>(splits), ids.NumElements()));
    if (HasWeights() && context->input(2).NumElements() != ids.NumElements()) {
      return InvalidArgument(absl::StrCat("got ", context->input(2).NumElements(), " weights for ", ids.NumElements(),
                                          " ids, wanted one for each"));
    }
    return OkStatus();
  }

  // The outputs after a problem, which the route refuses.
  Status WriteNoIds(tf::OpKernelContext* context) const {
    LOCKSTEP_RETURN_IF_ERROR(AllocateTensor(context, 0, {0}).status());
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * splits, AllocateTensor(context, 1, context->input(1).shape()));
    splits->flat<int64_t>().setZero();
    return HasWeights() ? AllocateTensor(context, kWeights, {0}).status() : OkStatus();
  }

  Status PassOn(tf::OpKernelContext* context) const {
    context->set_output(0, context->input(0));
    context->set_output(1, context->input(1));
    if (HasWeights()) context->set_output(kWeights, context->input(2));
    return OkStatus();
  }

  bool HasWeights() const { return weights_ > 0; }

  template <typename Id>
  Status Drop(tf::OpKernelContext* context) const {
    const bool is_double = HasWeights() && context->input(2).dtype() == tf::DT_DOUBLE;
    return is_double ? Drop<Id, double>(context) : Drop<Id, float>(context);
  }

  template <typename Id, typename Weight>
  Status Drop(tf::OpKernelContext* context) const {
    const tf::Tensor& given = context->input(0);
    const bool has_weights = HasWeights();
    const auto weights = has_weights ? AsSpan<Weight>(context->input(2)) : std::span<const Weight>();
    const GivenIds<Id, Weight> ids = {given.flat<Id>().data(), AsSpan<int64_t>(context->input(1)), weights,
                                      has_weights && positive_weights_};
    const bool fills = fill_ && ids.HasExampleWithoutValidIds();
    if (!fills && ids.AreAllValid()) return PassOn(context);
    const int64_t valid = ids.CountValid();
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * valid_ids, AllocateTensor(context, 0, {valid + (fills ? 1 : 0)}));
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * valid_splits, AllocateTensor(context, 1, context->input(1).shape()));
    Weight* valid_weights = nullptr;  // if there are weights
    if (has_weights) {
      LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * out, AllocateTensor(context, kWeights, {valid}));
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

  std::string table_;
  bool positive_weights_ = false;
  bool fill_ = false;
  bool drops_ = true;
  bool defers_ = false;
  int weights_ = 0;   // inputs of weights
  int problems_ = 0;  // inputs of problems, which are the last ones
};

absl::Status ValidIdsShapes(InferenceContext* c) {
  c->set_output(0, c->Vector(c->UnknownDim()));
  c->set_output(1, c->input(1));
  c->set_output(2, c->Scalar());
  if (c->num_outputs() > 3) c->set_output(3, c->Vector(c->UnknownDim()));
  return absl::OkStatus();
}

REGISTER_KERNEL_BUILDER(Name("LockstepValidIds").Device(tf::DEVICE_CPU), ValidIdsKernel);

REGISTER_OP("LockstepValidIds")
    .Input("ids: Tids")
    .Input("splits: int64")
    .Input("weights: Tweights")
    .Input("problems: P * string")
    .Output("valid_ids: Tids")
    .Output("valid_splits: int64")
    .Output("problem: string")
    .Output("valid_weights: Tweights")
    .Attr("Tids: {int32, int64, string}")
    .Attr("Tweights: list({float, double}) >= 0")
    .Attr("P: int >= 0")
    .Attr("positive_weights: bool")
    .Attr("fill: bool")
    .Attr("drops: bool = true")
    .Attr("table: string")
    .Attr(LOCKSTEP_DEFERS_ATTR)
    .SetShapeFn(ValidIdsShapes)
    .Doc(R"doc(
Drops ids below 0 and, if weights have to be positive, ids whose weight is not.

ids: [N]; any string is valid.
splits: [B + 1]; where the ids of each example begin.
weights: [N], of each id; or no tensor.
problems: of the steps before.
valid_ids: [K]; with `fill`, an id 0 of no example follows if an example has no valid id.
valid_splits: [B + 1]; where the valid ids of each example begin; the last is K.
problem: an error's text, "" if there is none. After an error there are no ids.
valid_weights: [K].
positive_weights: whether ids without a positive weight are dropped.
drops: whether ids are dropped at all. Otherwise the op only checks its inputs.
table: its name, for messages.
defers: whether errors are reported by `problem`; otherwise the op fails.
)doc");

}  // namespace
}  // namespace lockstep
