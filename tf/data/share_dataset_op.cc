// A worker's share of a dataset, unchanged: its elements are the input's. It tells the engine that the share is read,
// because a program whose workers read their shares and never meet gets a warning (core/capi/apart_warning.h).
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/capi/apart_warning.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"

namespace lockstep {

namespace tfd = tensorflow::data;
using tensorflow::DataTypeVector;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;

REGISTER_OP("LockstepShareDataset")
    .Input("input_dataset: variant")
    .Output("handle: variant")
    .Attr("output_types: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

namespace {

// Immutable; reference-counted by TensorFlow.
class ShareDataset : public tfd::DatasetBase {
 public:
  ShareDataset(tensorflow::OpKernelContext* ctx, const DatasetBase* input)
      : DatasetBase(tfd::DatasetContext(ctx)), input_(input) {
    input_->Ref();
  }
  ~ShareDataset() override { input_->Unref(); }

  const DataTypeVector& output_dtypes() const override { return input_->output_dtypes(); }
  const std::vector<PartialTensorShape>& output_shapes() const override { return input_->output_shapes(); }
  std::string DebugString() const override { return "LockstepShareDatasetOp::Dataset"; }
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
    return b->AddDataset(this, {input}, output);
  }

 private:
  class Iterator;

  const DatasetBase* const input_;
};

// One pass. It has no state but the input's.
class ShareDataset::Iterator : public tfd::DatasetIterator<ShareDataset> {
 public:
  explicit Iterator(const Params& params) : DatasetIterator<ShareDataset>(params) {}

  absl::Status Initialize(tfd::IteratorContext* ctx) override {
    return dataset()->input_->MakeIterator(ctx, this, prefix(), &input_);
  }

 protected:
  // Several threads may call it; so they may call the input.
  absl::Status GetNextInternal(tfd::IteratorContext* ctx, std::vector<Tensor>* out, bool* end_of_sequence) override {
    ProcessApartWarning().NoteRead();
    return input_->GetNext(ctx, out, end_of_sequence);
  }

  absl::Status SkipInternal(tfd::IteratorContext* ctx, int num_to_skip, bool* end_of_sequence,
                            int* num_skipped) override {
    return input_->Skip(ctx, num_to_skip, end_of_sequence, num_skipped);
  }

  std::shared_ptr<tfd::model::Node> CreateNode(tfd::IteratorContext* ctx, tfd::model::Node::Args args) const override {
    return tfd::model::MakeKnownRatioNode(std::move(args), /*ratio=*/1);
  }

  absl::Status SaveInternal(tfd::SerializationContext* ctx, tfd::IteratorStateWriter* writer) override {
    return SaveInput(ctx, writer, input_);
  }

  absl::Status RestoreInternal(tfd::IteratorContext* ctx, tfd::IteratorStateReader* reader) override {
    return RestoreInput(ctx, reader, input_);
  }

 private:
  std::unique_ptr<tfd::IteratorBase> input_;  // set once, in Initialize
};

std::unique_ptr<tfd::IteratorBase> ShareDataset::MakeIteratorInternal(const std::string& prefix) const {
  return std::make_unique<Iterator>(Iterator::Params{this, prefix + "::LockstepShare"});
}

class ShareDatasetOp : public tfd::UnaryDatasetOpKernel {
 public:
  explicit ShareDatasetOp(tensorflow::OpKernelConstruction* ctx) : UnaryDatasetOpKernel(ctx) {}

 protected:
  void MakeDataset(tensorflow::OpKernelContext* ctx, tfd::DatasetBase* input, tfd::DatasetBase** output) override {
    *output = new ShareDataset(ctx, input);
  }
};

REGISTER_KERNEL_BUILDER(Name("LockstepShareDataset").Device(tensorflow::DEVICE_CPU), ShareDatasetOp);

}  // namespace
}  // namespace lockstep
