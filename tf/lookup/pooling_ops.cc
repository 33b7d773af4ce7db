// Pooled lookups (core/embedding/pooling.h): the rows of each example's ids are combined into one.
//
//   indices -> LockstepSplits -> splits
//   distinct rows, places, splits, weights -> LockstepPool -> pooled
//                                 gradient: <- LockstepPoolGradient <-
//
//   tensor          shape            dtype           is
//   rows            [U, ...]         T               the row of each distinct id
//   places          [N]              int32           the row of each id
//   splits          [B + 1]          int64           where the ids of each example begin; the last is N
//   weights         [N]              float, double   of each id; double if the rows are double
//   pooled          [B, ...]         T               the combined row of each example
//   row_shapes      [dims of rows]   int64           the shape of rows
//   row_gradients   [U, ...]         T               the sum of the gradients of each distinct id
//
// None of these ops communicates. LockstepPool and its gradient take lists, like the ops of a lookup (lookup_ops.cc):
// the pass in tf/graph/grouping.h joins those that can run together, so the pooling of all tables is one parallel pass.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/embedding/pooling.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf/bridge/convert.h"
#include "tf/bridge/parallel.h"
#include "tf/comm/collective_op.h"
#include "tf/lookup/problems.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;
using tf::shape_inference::DimensionHandle;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

// Returns the type of the weights of rows.
tf::DataType WeightsOf(tf::DataType rows) { return rows == tf::DT_DOUBLE ? tf::DT_DOUBLE : tf::DT_FLOAT; }

// Returns the shape of a row: all dimensions but the first. INVALID_ARGUMENT for a scalar.
Result<tf::TensorShape> RowShape(const char* what, const tf::TensorShape& shape) {
  if (shape.dims() < 1) return InvalidArgument(absl::StrCat(what, " are a scalar, wanted [count, ...]"));
  tf::TensorShape row = shape;
  row.RemoveDim(0);
  return row;
}

// Returns the shape of `count` rows.
Result<tf::TensorShape> ShapeOf(int64_t count, const tf::TensorShape& rows) {
  tf::TensorShape shape = rows;
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(shape.SetDimWithStatus(0, count)));
  return shape;
}

Status CheckShape(const char* what, const tf::Tensor& tensor, const tf::TensorShape& wanted) {
  if (tensor.shape() == wanted) return OkStatus();
  return InvalidArgument(
      absl::StrCat(what, ": got shape ", tensor.shape().DebugString(), ", wanted ", wanted.DebugString()));
}

// Fills a lookup from its tensors, and checks it. shape: of the rows; weights: null if there are none.
Result<Pooling> PoolingOf(Combiner combiner, tf::DataType dtype, const tf::TensorShape& shape, const tf::Tensor& places,
                          const tf::Tensor& splits, const tf::Tensor* weights) {
  Pooling lookup;
  LOCKSTEP_ASSIGN_OR_RETURN(const tf::TensorShape row, RowShape("rows", shape));
  LOCKSTEP_ASSIGN_OR_RETURN(lookup.dtype, ToDType(dtype));
  lookup.combiner = combiner;
  lookup.dim = row.num_elements();
  lookup.rows = shape.dim_size(0);
  lookup.splits = AsSpan<int64_t>(splits);
  lookup.places = AsSpan<int32_t>(places);
  if (weights != nullptr) {
    if (weights->dtype() != WeightsOf(dtype) || weights->NumElements() != places.NumElements()) {
      return InvalidArgument(absl::StrCat("weights are ", tf::DataTypeString(weights->dtype()),
                                          weights->shape().DebugString(), ", wanted ",
                                          tf::DataTypeString(WeightsOf(dtype)), " for ", places.NumElements(), " ids"));
    }
    lookup.weights = Data(*weights);
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckPooling(lookup));
  return lookup;
}

// The attributes and the inputs that LockstepPool and its gradient have in common.
class PoolKernelBase : public tf::OpKernel {
 public:
  // first: the index of `places` among the arguments before the weights; each argument has N tensors.
  PoolKernelBase(tf::OpKernelConstruction* construction, int first) : OpKernel(construction), first_(first) {
    std::vector<std::string> combiners;
    int count = 0;
    OP_REQUIRES_OK(construction, construction->GetAttr("N", &count));
    OP_REQUIRES_OK(construction, construction->GetAttr("combiners", &combiners));
    OP_REQUIRES_OK(construction, construction->GetAttr("weighted", &weighted_));
    OP_REQUIRES_OK(construction, construction->GetAttr("tables", &tables_));
    for (const std::string& combiner : combiners) combiners_.push_back(*FindCombiner(combiner));
    int next = (first + 2) * count;
    for (const bool weighted : weighted_) weights_.push_back(weighted ? next++ : next);
    OP_REQUIRES(construction,
                static_cast<int>(combiners_.size()) == count && static_cast<int>(weights_.size()) == count &&
                    static_cast<int>(tables_.size()) == count && construction->num_outputs() == count &&
                    construction->num_inputs() == next,
                absl::InvalidArgumentError(absl::StrCat("'", construction->def().name(), "': N = ", count, ", but ",
                                                        combiners_.size(), " combiners, ", tables_.size(), " tables, ",
                                                        weights_.size(), " weighted, ", construction->num_inputs(),
                                                        " inputs and ", construction->num_outputs(), " outputs")));
  }

  void Compute(tf::OpKernelContext* context) override { context->SetStatus(ToTensorFlow(Run(context))); }

 protected:
  virtual Status Run(tf::OpKernelContext* context) = 0;

  int count() const { return static_cast<int>(combiners_.size()); }

  // Returns the beginning of an error of lookup `i`.
  std::string PrefixOf(int i) const { return absl::StrCat("table '", tables_[i], "': "); }

  // Returns lookup `i`, whose rows have a type and a shape.
  Result<Pooling> LookupOf(tf::OpKernelContext* context, int i, tf::DataType dtype,
                           const tf::TensorShape& shape) const {
    const int places = first_ * count() + i;
    Result<Pooling> lookup =
        PoolingOf(combiners_[i], dtype, shape, context->input(places), context->input(places + count()),
                  weighted_[i] ? &context->input(weights_[i]) : nullptr);
    if (!lookup.ok()) return lookup.status().WithPrefix(PrefixOf(i));
    return lookup;
  }

 private:
  const int first_;
  std::vector<Combiner> combiners_;
  std::vector<std::string> tables_;
  std::vector<bool> weighted_;
  std::vector<int> weights_;  // for each lookup, the input with its weights, if it has some
};

class PoolKernel : public PoolKernelBase {
 public:
  explicit PoolKernel(tf::OpKernelConstruction* construction) : PoolKernelBase(construction, 1) {}

 protected:
  Status Run(tf::OpKernelContext* context) override {
    std::vector<PoolRowsTask> tasks;
    for (int i = 0; i < count(); ++i) {
      const tf::Tensor& rows = context->input(i);
      LOCKSTEP_ASSIGN_OR_RETURN(const Pooling lookup, LookupOf(context, i, rows.dtype(), rows.shape()));
      LOCKSTEP_ASSIGN_OR_RETURN(const tf::TensorShape shape, ShapeOf(lookup.examples(), rows.shape()));
      LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * pooled, AllocateTensor(context, i, shape));
      tasks.push_back({lookup, Data(rows), Data(*pooled)});
    }
    PoolRows(tasks, ParallelForOf(context));
    return OkStatus();
  }
};

class PoolGradientKernel : public PoolKernelBase {
 public:
  explicit PoolGradientKernel(tf::OpKernelConstruction* construction) : PoolKernelBase(construction, 2) {}

 protected:
  Status Run(tf::OpKernelContext* context) override {
    std::vector<PoolGradientsTask> tasks;
    for (int i = 0; i < count(); ++i) {
      const tf::Tensor& gradient = context->input(i);
      tf::TensorShape shape;
      LOCKSTEP_RETURN_IF_ERROR(
          FromTensorFlow(tf::TensorShape::BuildTensorShape(AsSpan<int64_t>(context->input(count() + i)), &shape)));
      LOCKSTEP_ASSIGN_OR_RETURN(const Pooling lookup, LookupOf(context, i, gradient.dtype(), shape));
      LOCKSTEP_ASSIGN_OR_RETURN(const tf::TensorShape wanted, ShapeOf(lookup.examples(), shape));
      LOCKSTEP_RETURN_IF_ERROR(CheckShape("gradient", gradient, wanted).WithPrefix(PrefixOf(i)));
      LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * sums, AllocateTensor(context, i, shape));
      tasks.push_back({lookup, Data(gradient), Data(*sums)});
    }
    PoolGradients(tasks, ParallelForOf(context));
    return OkStatus();
  }
};

// A batch has fewer. A wrong index must not ask for more memory than this: splits of 1 GiB.
constexpr int64_t kMostExamples = int64_t{1} << 27;

class SplitsKernel : public tf::OpKernel {
 public:
  explicit SplitsKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("table", &table_));
    OP_REQUIRES_OK(construction, construction->GetAttr("defers", &defers_));
  }

  void Compute(tf::OpKernelContext* context) override { context->SetStatus(ToTensorFlow(Run(context))); }

 private:
  Status Run(tf::OpKernelContext* context) const {
    const Status found = Fill(context).WithPrefix(absl::StrCat("table '", table_, "': "));
    LOCKSTEP_RETURN_IF_ERROR(ReportProblem(context, 1, found, defers_));
    if (found.ok()) return OkStatus();
    // Splits of no ids, which the route refuses.
    if (context->mutable_output(0) == nullptr) LOCKSTEP_RETURN_IF_ERROR(AllocateTensor(context, 0, {1}).status());
    context->mutable_output(0)->flat<int64_t>().setZero();
    return OkStatus();
  }

  static Status Fill(tf::OpKernelContext* context) {
    const tf::Tensor& indices = context->input(0);
    if (indices.dims() != 2 || indices.dim_size(1) < 1) {
      return InvalidArgument(
          absl::StrCat("got indices of shape ", indices.shape().DebugString(), ", wanted [ids, 2] of a SparseTensor"));
    }
    const int64_t ids = indices.dim_size(0), stride = indices.dim_size(1);
    const auto* const examples = static_cast<const int64_t*>(Data(indices));
    int64_t batch = 0;
    if (context->num_inputs() == 1) {
      // That of the last id, if ids are sorted; SplitsOf checks it.
      int64_t last = -1;
      for (int64_t i = 0; i < ids; ++i) last = std::max(last, examples[i * stride]);
      batch = last < kMostExamples ? last + 1 : last;
    } else {
      const tf::Tensor& given = context->input(1);
      if (given.NumElements() != 1) {
        return InvalidArgument(absl::StrCat("batch has shape ", given.shape().DebugString(), ", wanted a scalar"));
      }
      batch = given.flat<int64_t>()(0);
    }
    // A wrong number would be allocated before the ids are checked.
    if (batch < 0 || batch > kMostExamples) {
      return InvalidArgument(absl::StrCat("got ", batch, " examples, wanted [0, 2^27]: the shape or an index of the ",
                                          "SparseTensor is wrong, or the batch has to be divided"));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * splits, AllocateTensor(context, 0, {batch + 1}));
    return SplitsOf(examples, stride, ids,
                    {static_cast<int64_t*>(Data(*splits)), static_cast<size_t>(splits->NumElements())});
  }

  std::string table_;
  bool defers_ = false;
};

// Sets [B, ...] for each lookup: there is an example less than splits.
absl::Status PoolShapes(InferenceContext* c) {
  const int count = c->num_outputs();
  if (c->num_inputs() < 3 * count) {
    return absl::InvalidArgumentError(absl::StrCat(c->num_inputs(), " inputs for ", count, " lookups"));
  }
  for (int i = 0; i < count; ++i) {
    ShapeHandle rows, row, splits, out;
    DimensionHandle examples;
    TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(i), 1, &rows));
    TF_RETURN_IF_ERROR(c->Subshape(rows, 1, &row));
    TF_RETURN_IF_ERROR(c->WithRank(c->input(2 * count + i), 1, &splits));
    TF_RETURN_IF_ERROR(c->Subtract(c->Dim(splits, 0), 1, &examples));
    TF_RETURN_IF_ERROR(c->Concatenate(c->Vector(examples), row, &out));
    c->set_output(i, out);
  }
  return absl::OkStatus();
}

absl::Status PoolGradientShapes(InferenceContext* c) {
  const int count = c->num_outputs();
  if (c->num_inputs() < 4 * count) {
    return absl::InvalidArgumentError(absl::StrCat(c->num_inputs(), " inputs for ", count, " lookups"));
  }
  for (int i = 0; i < count; ++i) {
    ShapeHandle gradient, row, out;
    TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(i), 1, &gradient));
    TF_RETURN_IF_ERROR(c->Subshape(gradient, 1, &row));
    TF_RETURN_IF_ERROR(c->Concatenate(c->Vector(c->UnknownDim()), row, &out));
    c->set_output(i, out);
  }
  return absl::OkStatus();
}

absl::Status SplitsShape(InferenceContext* c) {
  ShapeHandle indices;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &indices));
  c->set_output(0, c->Vector(c->UnknownDim()));
  c->set_output(1, c->Scalar());
  if (c->num_inputs() < 2) return absl::OkStatus();
  const tf::Tensor* const batch = c->input_tensor(1);
  if (batch != nullptr && batch->NumElements() == 1 && batch->flat<int64_t>()(0) >= 0) {
    c->set_output(0, c->Vector(batch->flat<int64_t>()(0) + 1));
  }
  return absl::OkStatus();
}

REGISTER_KERNEL_BUILDER(Name("LockstepPool").Device(tf::DEVICE_CPU), PoolKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepPoolGradient").Device(tf::DEVICE_CPU), PoolGradientKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepSplits").Device(tf::DEVICE_CPU), SplitsKernel);

#define LOCKSTEP_COMBINER "{'sum', 'mean', 'sqrtn'}"
#define LOCKSTEP_FLOATS "{float, double, half, bfloat16}"

REGISTER_OP("LockstepPool")
    .Input("rows: T")
    .Input("places: N * int32")
    .Input("splits: N * int64")
    .Input("weights: Tweights")
    .Output("pooled: T")
    .Attr("N: int >= 1")
    .Attr("T: list(" LOCKSTEP_FLOATS ") >= 1")
    .Attr("Tweights: list({float, double}) >= 0")
    .Attr("combiners: list(" LOCKSTEP_COMBINER ") >= 1")
    .Attr("weighted: list(bool) >= 1")
    .Attr("tables: list(string) >= 1")
    .Attr(LOCKSTEP_GROUP_ATTR ": bool = true")
    .SetShapeFn(PoolShapes)
    .Doc(R"doc(
Combines the rows of N lookups per example, as tf.nn.embedding_lookup_sparse defines it.

rows: [U, ...]; the row of each distinct id.
places: [ids]; the row of each id.
splits: [B + 1]; where the ids of each example begin.
weights: [ids], for each weighted lookup; double for double rows, else float.
pooled: [B, ...]; zeros for an example without ids.
)doc");

REGISTER_OP("LockstepPoolGradient")
    .Input("gradient: T")
    .Input("row_shapes: N * int64")
    .Input("places: N * int32")
    .Input("splits: N * int64")
    .Input("weights: Tweights")
    .Output("row_gradients: T")
    .Attr("N: int >= 1")
    .Attr("T: list(" LOCKSTEP_FLOATS ") >= 1")
    .Attr("Tweights: list({float, double}) >= 0")
    .Attr("combiners: list(" LOCKSTEP_COMBINER ") >= 1")
    .Attr("weighted: list(bool) >= 1")
    .Attr("tables: list(string) >= 1")
    .Attr(LOCKSTEP_GROUP_ATTR ": bool = true")
    .SetShapeFn(PoolGradientShapes)
    .Doc(R"doc(
Computes LockstepPool's gradient: sums the gradients of examples for each distinct row.

gradient: [B, ...].
row_shapes: the shape of rows.
row_gradients: [U, ...].
)doc");

REGISTER_OP("LockstepSplits")
    .Input("indices: int64")
    .Input("batch: S * int64")
    .Output("splits: int64")
    .Output("problem: string")
    .Attr("S: int >= 0")
    .Attr("table: string")
    .Attr(LOCKSTEP_DEFERS_ATTR)
    .SetShapeFn(SplitsShape)
    .Doc(R"doc(
Returns where the ids of each example begin, [B + 1], from the indices of a SparseTensor.

indices: [ids, 2]; only the first column counts, which must not fall.
batch: B; no tensor: the number of examples up to the last one with ids.
problem: an error's text, "" if there is none. After an error, the splits are those of no ids.
table: its name, for messages.
defers: whether errors are reported by `problem`; otherwise the op fails.
)doc");

}  // namespace
}  // namespace lockstep
