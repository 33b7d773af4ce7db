// Replaces TensorFlow's SplitV in graphs with pooled lookups by an operation that does the same in a tenth of the time.
//
// A model concatenates the pooled rows of its features, [B, D] each. On the way back, SplitV cuts the gradient
// [B, D + D + ...] into the features' parts again, with an Eigen expression for each part. For 26 features of 16
// numbers this takes longer than the lookups' own gradients. LockstepSplit copies one piece of a row after the other.
//
// The pass runs in POST_REWRITE_FOR_EXEC, in which the order pass also runs; they do not touch the same nodes.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/graph/graph.h"
#include "tf/bridge/convert.h"
#include "tf/bridge/parallel.h"
#include "tf/graph/edges.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// The elements that a thread copies at least.
constexpr int64_t kElementsWorthThreads = 1 << 15;

class SplitKernel : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    context->SetStatus(ToTensorFlow(Run(context).WithPrefix(absl::StrCat("'", name(), "': "))));
  }

 private:
  // A part: its width in bytes, where it begins in a row of the whole, and its output.
  struct Part {
    int64_t width;
    int64_t begin;
    char* out;
  };

  static Status Run(tf::OpKernelContext* context) {
    const tf::Tensor& value = context->input(0);
    LOCKSTEP_ASSIGN_OR_RETURN(const int axis, AxisOf(context->input(2), value.dims()));
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes,
                              SizesOf(context->input(1), context->num_outputs(), value.dim_size(axis)));
    int64_t rows = 1, inner = tf::DataTypeSize(value.dtype());
    for (int d = 0; d < axis; ++d) rows *= value.dim_size(d);
    for (int d = axis + 1; d < value.dims(); ++d) inner *= value.dim_size(d);
    std::vector<Part> parts;
    int64_t begin = 0;
    for (int i = 0; i < context->num_outputs(); ++i) {
      tf::TensorShape shape = value.shape();
      shape.set_dim(axis, sizes[i]);
      LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * out, AllocateTensor(context, i, shape));
      parts.push_back({sizes[i] * inner, begin, static_cast<char*>(Data(*out))});
      begin += parts.back().width;
    }
    if (value.NumElements() == 0) return OkStatus();
    const int64_t stride = value.dim_size(axis) * inner;
    const auto* const from = static_cast<const char*>(Data(value));
    const int64_t grain = std::max<int64_t>(1, kElementsWorthThreads * rows / value.NumElements());
    ParallelForOf(context)(rows, grain, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        for (const Part& part : parts) {
          std::memcpy(part.out + row * part.width, from + row * stride + part.begin, part.width);
        }
      }
    });
    return OkStatus();
  }

  static Result<int> AxisOf(const tf::Tensor& given, int dims) {
    if (given.NumElements() != 1) {
      return InvalidArgument(absl::StrCat("split_dim has shape ", given.shape().DebugString(), ", wanted a scalar"));
    }
    const int axis = given.flat<int32_t>()(0);
    if (axis < -dims || axis >= dims) {
      return InvalidArgument(absl::StrCat("split_dim is ", axis, ", wanted one of ", dims, " dimensions"));
    }
    return axis < 0 ? axis + dims : axis;
  }

  // Returns the size of each part; one may be given as -1, for what the others leave.
  static Result<std::vector<int64_t>> SizesOf(const tf::Tensor& given, int count, int64_t whole) {
    std::vector<int64_t> sizes(given.NumElements());
    for (size_t i = 0; i < sizes.size(); ++i) {
      sizes[i] = given.dtype() == tf::DT_INT32 ? given.flat<int32_t>()(i) : given.flat<int64_t>()(i);
    }
    const auto rest = std::find(sizes.begin(), sizes.end(), -1);
    if (rest != sizes.end()) *rest = whole - (std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) + 1);
    const bool fits = static_cast<int>(sizes.size()) == count &&
                      std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size >= 0; }) &&
                      std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) == whole;
    if (fits) return sizes;
    return InvalidArgument(
        absl::StrCat("size_splits is ", given.SummarizeValue(count), ", wanted ", count, " sizes that sum to ", whole));
  }
};

// Puts a node in the place of another with the same inputs and outputs.
Status Replace(tf::Graph* graph, tf::Node* node, const char* op) {
  tf::NodeDef def = node->def();
  def.set_op(op);
  absl::Status status;
  tf::Node* const other = graph->AddNode(def, &status);
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(status));
  other->set_assigned_device_name(node->assigned_device_name());
  std::vector<int> inputs(node->num_inputs()), outputs(node->num_outputs());
  std::iota(inputs.begin(), inputs.end(), 0);
  std::iota(outputs.begin(), outputs.end(), 0);
  TakePlace(graph, node, other, inputs, outputs);
  return OkStatus();
}

class SplitPass : public tf::GraphOptimizationPass {
 public:
  absl::Status Run(const tf::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr || *options.graph == nullptr) return absl::OkStatus();
    tf::Graph* const graph = options.graph->get();
    bool pools = false;
    std::vector<tf::Node*> splits;
    for (tf::Node* node : graph->op_nodes()) {
      pools = pools || node->type_string() == "LockstepPoolGradient";
      if (node->type_string() == "SplitV" && tf::DataTypeIsFloating(node->output_type(0)) &&
          !absl::StrContains(node->assigned_device_name(), "GPU")) {
        splits.push_back(node);
      }
    }
    if (!pools) return absl::OkStatus();
    for (tf::Node* node : splits) TF_RETURN_IF_ERROR(ToTensorFlow(Replace(graph, node, "LockstepSplit")));
    return absl::OkStatus();
  }
};

REGISTER_OPTIMIZATION(tf::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 0, SplitPass);

REGISTER_KERNEL_BUILDER(Name("LockstepSplit").Device(tf::DEVICE_CPU), SplitKernel);

REGISTER_OP("LockstepSplit")
    .Input("value: T")
    .Input("size_splits: Tlen")
    .Input("split_dim: int32")
    .Output("output: num_split * T")
    .Attr("num_split: int >= 1")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("Tlen: {int32, int64} = DT_INT64")
    .SetShapeFn(tf::shape_inference::UnknownShape)
    .Doc(R"doc(
Does what TensorFlow's SplitV does, with the same inputs, outputs and attributes.

value: the tensor to split.
size_splits: [num_split]; the size of each part along the dimension; one may be -1, for the rest.
split_dim: the dimension, negative from the end.
)doc");

}  // namespace
}  // namespace lockstep
