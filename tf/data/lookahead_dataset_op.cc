// A dataset's elements, each with the number of elements that follow it. The number is known before the element is
// used, so a training loop can end with its last step instead of one step later (lockstep/_src/data/sync.py).
//
// The iterator reads up to `ahead` elements in advance. They are part of its state: a saved position counts returned
// elements, and restoring it neither skips elements nor reads them twice.
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"

namespace lockstep {

namespace tfd = tensorflow::data;
using tensorflow::DataTypeVector;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;

// An element is one of the input's plus a scalar, int64: the number of elements that follow, but at most `ahead`.
REGISTER_OP("LockstepLookaheadDataset")
    .Input("input_dataset: variant")
    .Output("handle: variant")
    .Attr("ahead: int >= 1 = 1")
    .Attr("output_types: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

namespace {

// The keys of an iterator's state; an element's tensors have keys of their own.
constexpr char kCount[] = "count";
constexpr char kEnded[] = "ended";

std::string TensorKey(size_t element, size_t tensor) { return absl::StrCat("element_", element, "_", tensor); }

// Immutable; reference-counted by TensorFlow.
class LookaheadDataset : public tfd::DatasetBase {
 public:
  LookaheadDataset(tensorflow::OpKernelContext* ctx, const DatasetBase* input, int64_t ahead, DataTypeVector types,
                   std::vector<PartialTensorShape> shapes)
      : DatasetBase(tfd::DatasetContext(ctx)),
        input_(input),
        ahead_(ahead),
        types_(std::move(types)),
        shapes_(std::move(shapes)) {
    input_->Ref();
  }
  ~LookaheadDataset() override { input_->Unref(); }

  const DataTypeVector& output_dtypes() const override { return types_; }
  const std::vector<PartialTensorShape>& output_shapes() const override { return shapes_; }
  std::string DebugString() const override { return "LockstepLookaheadDatasetOp::Dataset"; }
  absl::Status InputDatasets(std::vector<const DatasetBase*>* inputs) const override {
    inputs->push_back(input_);
    return absl::OkStatus();
  }
  absl::Status CheckExternalState() const override { return input_->CheckExternalState(); }
  int64_t CardinalityInternal(tfd::CardinalityOptions options) const override { return input_->Cardinality(options); }
  std::unique_ptr<tfd::IteratorBase> MakeIteratorInternal(const std::string& prefix) const override;

 protected:
  absl::Status AsGraphDefInternal(tfd::SerializationContext* ctx, DatasetGraphDefBuilder* b,
                                  tensorflow::Node** output) const override {
    tensorflow::Node* input;
    TF_RETURN_IF_ERROR(b->AddInputDataset(ctx, input_, &input));
    tensorflow::AttrValue ahead;
    b->BuildAttrValue(ahead_, &ahead);
    return b->AddDataset(this, {input}, {{"ahead", ahead}}, output);
  }

 private:
  class Iterator;

  const DatasetBase* const input_;
  const int64_t ahead_;
  const DataTypeVector types_;
  const std::vector<PartialTensorShape> shapes_;
};

// One pass. An error of the input is returned once, before the elements that were read ahead of it. The next call
// returns these elements and continues to read the input.
class LookaheadDataset::Iterator : public tfd::DatasetIterator<LookaheadDataset> {
 public:
  explicit Iterator(const Params& params) : DatasetIterator<LookaheadDataset>(params) {}

  absl::Status Initialize(tfd::IteratorContext* ctx) override {
    absl::MutexLock lock(&mutex_);
    return dataset()->input_->MakeIterator(ctx, this, prefix(), &input_);
  }

 protected:
  absl::Status GetNextInternal(tfd::IteratorContext* ctx, std::vector<Tensor>* out, bool* end_of_sequence) override {
    absl::MutexLock lock(&mutex_);
    const size_t wanted = 1 + static_cast<size_t>(dataset()->ahead_);
    while (!ended_ && read_.size() < wanted) {
      std::vector<Tensor> element;
      TF_RETURN_IF_ERROR(input_->GetNext(ctx, &element, &ended_));
      if (!ended_) read_.push_back(std::move(element));
    }
    *end_of_sequence = read_.empty();
    if (*end_of_sequence) return absl::OkStatus();
    *out = std::move(read_.front());
    read_.pop_front();
    out->emplace_back(static_cast<int64_t>(read_.size()));
    return absl::OkStatus();
  }

  std::shared_ptr<tfd::model::Node> CreateNode(tfd::IteratorContext* ctx, tfd::model::Node::Args args) const override {
    return tfd::model::MakeKnownRatioNode(std::move(args), /*ratio=*/1);
  }

  absl::Status SaveInternal(tfd::SerializationContext* ctx, tfd::IteratorStateWriter* writer) override {
    absl::MutexLock lock(&mutex_);
    TF_RETURN_IF_ERROR(SaveInput(ctx, writer, input_));
    TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), kEnded, static_cast<int64_t>(ended_)));
    TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), kCount, static_cast<int64_t>(read_.size())));
    for (size_t i = 0; i < read_.size(); ++i) {
      for (size_t j = 0; j < read_[i].size(); ++j) {
        TF_RETURN_IF_ERROR(writer->WriteTensor(prefix(), TensorKey(i, j), read_[i][j]));
      }
    }
    return absl::OkStatus();
  }

  absl::Status RestoreInternal(tfd::IteratorContext* ctx, tfd::IteratorStateReader* reader) override {
    absl::MutexLock lock(&mutex_);
    int64_t ended, count;
    TF_RETURN_IF_ERROR(RestoreInput(ctx, reader, input_));
    TF_RETURN_IF_ERROR(reader->ReadScalar(prefix(), kEnded, &ended));
    TF_RETURN_IF_ERROR(reader->ReadScalar(prefix(), kCount, &count));
    ended_ = ended != 0;
    read_.clear();
    // The last type is the added scalar's.
    const size_t tensors = dataset()->types_.size() - 1;
    for (int64_t i = 0; i < count; ++i) {
      std::vector<Tensor>& element = read_.emplace_back(tensors);
      for (size_t j = 0; j < tensors; ++j) {
        TF_RETURN_IF_ERROR(reader->ReadTensor(ctx->flr(), prefix(), TensorKey(i, j), &element[j]));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Mutex mutex_;
  std::unique_ptr<tfd::IteratorBase> input_ ABSL_GUARDED_BY(mutex_);
  // The next elements, in order. Between two calls there are at most `ahead` of them.
  std::deque<std::vector<Tensor>> read_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

std::unique_ptr<tfd::IteratorBase> LookaheadDataset::MakeIteratorInternal(const std::string& prefix) const {
  return std::make_unique<Iterator>(Iterator::Params{this, prefix + "::LockstepLookahead"});
}

class LookaheadDatasetOp : public tfd::UnaryDatasetOpKernel {
 public:
  explicit LookaheadDatasetOp(tensorflow::OpKernelConstruction* ctx) : UnaryDatasetOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("ahead", &ahead_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_types", &types_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_shapes", &shapes_));
  }

 protected:
  void MakeDataset(tensorflow::OpKernelContext* ctx, tfd::DatasetBase* input, tfd::DatasetBase** output) override {
    OP_REQUIRES(ctx, types_.size() == input->output_dtypes().size() + 1,
                absl::InvalidArgumentError(absl::StrCat("an element of the dataset has ", input->output_dtypes().size(),
                                                        " tensors, and output_types has ", types_.size(),
                                                        ", wanted one more than that")));
    *output = new LookaheadDataset(ctx, input, ahead_, types_, shapes_);
  }

 private:
  int64_t ahead_;
  DataTypeVector types_;
  std::vector<PartialTensorShape> shapes_;
};

REGISTER_KERNEL_BUILDER(Name("LockstepLookaheadDataset").Device(tensorflow::DEVICE_CPU), LookaheadDatasetOp);

}  // namespace
}  // namespace lockstep
