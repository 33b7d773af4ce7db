// Converts batches of any sizes to batches of one size, in order or shuffled: core/columnar/rebatch.h as a dataset.
//
// Elements are flat here: for each column its values, then its row splits (tf/bridge/columns.h). Python knows which
// tensors belong together and tells it by `ragged_ranks`.
//
// Shuffling differs from pass to pass. An iterator's pass is the number of iterators made before it. They are counted
// for the dataset or under a name; a graph whose initializer runs repeatedly makes a new dataset each time and needs
// the name.
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "core/columnar/rebatch.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tf/bridge/columns.h"
#include "tf/bridge/convert.h"

namespace lockstep {

namespace tfd = tensorflow::data;
using tensorflow::DataTypeVector;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;

REGISTER_OP("LockstepRebatchDataset")
    .Input("input_dataset: variant")
    .Input("batch_size: int64")
    // 0 keeps the order.
    .Input("buffer_size: int64")
    .Input("seed: int64")
    .Input("seed2: int64")
    .Output("handle: variant")
    // The number of row splits of each column, in the order of an element's tensors.
    .Attr("ragged_ranks: list(int) >= 1")
    .Attr("drop_remainder: bool = false")
    .Attr("reshuffle_each_iteration: bool = true")
    // The name under which this process counts passes; empty: the dataset counts them.
    .Attr("passes: string = ''")
    .Attr("output_types: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

namespace {

// The keys of an iterator's state.
constexpr char kDraws[] = "draws";
constexpr char kEnded[] = "ended";
constexpr char kPass[] = "pass";
constexpr char kRows[] = "rows";
constexpr char kSlots[] = "slots";

struct RebatchAttributes {
  std::vector<int64_t> ragged_ranks;
  bool drop_remainder;
  bool reshuffle_each_iteration;
  std::string passes;
  DataTypeVector output_types;
  std::vector<PartialTensorShape> output_shapes;
};

// Returns the count of passes under `name`, which lives as long as the process. Kernels do not: tf.data makes new ones
// when it rewrites a dataset. Without a name, the count is not shared.
std::shared_ptr<std::atomic<int64_t>> PassesOf(const std::string& name) {
  static absl::Mutex mutex;
  static auto& counts = *new std::map<std::string, std::shared_ptr<std::atomic<int64_t>>>();
  if (name.empty()) return std::make_shared<std::atomic<int64_t>>(0);
  absl::MutexLock lock(&mutex);
  auto& count = counts[name];
  if (count == nullptr) count = std::make_shared<std::atomic<int64_t>>(0);
  return count;
}

// Made of an op's inputs; immutable except for the count of passes. TensorFlow counts its references.
class RebatchDataset : public tfd::DatasetBase {
 public:
  struct Inputs {
    int64_t batch_size, buffer_size, seed, seed2;
  };

  RebatchDataset(tensorflow::OpKernelContext* ctx, const DatasetBase* input, const Inputs& inputs,
                 RebatchAttributes attributes, std::shared_ptr<std::atomic<int64_t>> passes)
      : DatasetBase(tfd::DatasetContext(ctx)),
        input_(input),
        inputs_(inputs),
        attributes_(std::move(attributes)),
        passes_(std::move(passes)) {
    input_->Ref();
  }
  ~RebatchDataset() override { input_->Unref(); }

  const DataTypeVector& output_dtypes() const override { return attributes_.output_types; }
  const std::vector<PartialTensorShape>& output_shapes() const override { return attributes_.output_shapes; }
  std::string DebugString() const override { return "LockstepRebatchDatasetOp::Dataset"; }
  absl::Status InputDatasets(std::vector<const DatasetBase*>* inputs) const override {
    inputs->push_back(input_);
    return absl::OkStatus();
  }
  absl::Status CheckExternalState() const override { return input_->CheckExternalState(); }
  int64_t CardinalityInternal(tfd::CardinalityOptions options) const override {
    const int64_t cardinality = input_->Cardinality(options);
    return cardinality == tfd::kInfiniteCardinality || cardinality == 0 ? cardinality : tfd::kUnknownCardinality;
  }
  std::unique_ptr<tfd::IteratorBase> MakeIteratorInternal(const std::string& prefix) const override;

 protected:
  absl::Status AsGraphDefInternal(tfd::SerializationContext* ctx, DatasetGraphDefBuilder* b,
                                  tensorflow::Node** output) const override {
    std::vector<tensorflow::Node*> nodes(5);
    TF_RETURN_IF_ERROR(b->AddInputDataset(ctx, input_, &nodes[0]));
    TF_RETURN_IF_ERROR(b->AddScalar(inputs_.batch_size, &nodes[1]));
    TF_RETURN_IF_ERROR(b->AddScalar(inputs_.buffer_size, &nodes[2]));
    TF_RETURN_IF_ERROR(b->AddScalar(inputs_.seed, &nodes[3]));
    TF_RETURN_IF_ERROR(b->AddScalar(inputs_.seed2, &nodes[4]));
    tensorflow::AttrValue ranks, drop, reshuffle, count;
    b->BuildAttrValue(attributes_.ragged_ranks, &ranks);
    b->BuildAttrValue(attributes_.drop_remainder, &drop);
    b->BuildAttrValue(attributes_.reshuffle_each_iteration, &reshuffle);
    b->BuildAttrValue(attributes_.passes, &count);
    return b->AddDataset(
        this, nodes,
        {{"ragged_ranks", ranks}, {"drop_remainder", drop}, {"reshuffle_each_iteration", reshuffle}, {"passes", count}},
        output);
  }

 private:
  class Iterator;

  columnar::RebatchOptions OptionsOf(int64_t pass) const {
    // Any mixing suffices, because the draws mix once more.
    const uint64_t seed = static_cast<uint64_t>(inputs_.seed) * 0x9e3779b97f4a7c15u ^
                          static_cast<uint64_t>(inputs_.seed2) * 0xc2b2ae3d27d4eb4fu;
    columnar::RebatchOptions options{inputs_.batch_size, attributes_.drop_remainder};
    if (inputs_.buffer_size > 0) options.buffer_size = inputs_.buffer_size;
    options.seed = seed + static_cast<uint64_t>(pass) * 0xd6e8feb86659fd93u;
    return options;
  }

  const DatasetBase* const input_;
  const Inputs inputs_;
  const RebatchAttributes attributes_;
  const std::shared_ptr<std::atomic<int64_t>> passes_;
};

// One pass. An error of the input, or of a batch that does not fit, is returned once and changes no rows: the next call
// continues to read the input.
class RebatchDataset::Iterator : public tfd::DatasetIterator<RebatchDataset> {
 public:
  explicit Iterator(const Params& params) : DatasetIterator<RebatchDataset>(params) {}

  absl::Status Initialize(tfd::IteratorContext* ctx) override {
    absl::MutexLock lock(&mutex_);
    pass_ = dataset()->attributes_.reshuffle_each_iteration ? dataset()->passes_->fetch_add(1) : 0;
    rebatcher_ = std::make_unique<columnar::Rebatcher>(dataset()->OptionsOf(pass_));
    return dataset()->input_->MakeIterator(ctx, this, prefix(), &input_);
  }

 protected:
  absl::Status GetNextInternal(tfd::IteratorContext* ctx, std::vector<Tensor>* out, bool* end_of_sequence) override {
    absl::MutexLock lock(&mutex_);
    while (!ended_ && rebatcher_->WantsMore()) {
      std::vector<Tensor> element;
      TF_RETURN_IF_ERROR(input_->GetNext(ctx, &element, &ended_));
      if (ended_) break;
      Result<columnar::Batch> batch = BatchOf(element);
      if (!batch.ok()) return ToTensorFlow(batch.status());
      rebatcher_->Push(*std::move(batch));
    }
    Result<columnar::Batch> batch = rebatcher_->Pop();
    if (!batch.ok()) return ToTensorFlow(batch.status());
    *end_of_sequence = batch->rows == 0;
    Append(*batch, out);
    return absl::OkStatus();
  }

  std::shared_ptr<tfd::model::Node> CreateNode(tfd::IteratorContext* ctx, tfd::model::Node::Args args) const override {
    return tfd::model::MakeUnknownRatioNode(std::move(args));
  }

  // The rows that were read and not returned are saved themselves, as tf.data's own shuffle does.
  absl::Status SaveInternal(tfd::SerializationContext* ctx, tfd::IteratorStateWriter* writer) override {
    absl::MutexLock lock(&mutex_);
    Result<columnar::Rebatcher::State> state = rebatcher_->Save();
    if (!state.ok()) return ToTensorFlow(state.status());
    TF_RETURN_IF_ERROR(SaveInput(ctx, writer, input_));
    TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), kEnded, static_cast<int64_t>(ended_)));
    TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), kPass, pass_));
    TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), kDraws, static_cast<int64_t>(state->draws)));
    TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), kSlots, state->slots));
    TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), kRows, state->rows.rows));
    std::vector<Tensor> tensors;
    Append(state->rows, &tensors);
    for (size_t i = 0; i < tensors.size(); ++i) {
      TF_RETURN_IF_ERROR(writer->WriteTensor(prefix(), absl::StrCat("tensor_", i), tensors[i]));
    }
    return absl::OkStatus();
  }

  absl::Status RestoreInternal(tfd::IteratorContext* ctx, tfd::IteratorStateReader* reader) override {
    absl::MutexLock lock(&mutex_);
    int64_t ended, draws, rows;
    columnar::Rebatcher::State state;
    TF_RETURN_IF_ERROR(RestoreInput(ctx, reader, input_));
    TF_RETURN_IF_ERROR(reader->ReadScalar(prefix(), kEnded, &ended));
    TF_RETURN_IF_ERROR(reader->ReadScalar(prefix(), kPass, &pass_));
    TF_RETURN_IF_ERROR(reader->ReadScalar(prefix(), kDraws, &draws));
    TF_RETURN_IF_ERROR(reader->ReadScalar(prefix(), kSlots, &state.slots));
    TF_RETURN_IF_ERROR(reader->ReadScalar(prefix(), kRows, &rows));
    ended_ = ended != 0;
    state.draws = static_cast<uint64_t>(draws);
    if (rows > 0) {
      std::vector<Tensor> tensors(dataset()->attributes_.output_types.size());
      for (size_t i = 0; i < tensors.size(); ++i) {
        TF_RETURN_IF_ERROR(reader->ReadTensor(ctx->flr(), prefix(), absl::StrCat("tensor_", i), &tensors[i]));
      }
      shapes_.clear();
      Result<columnar::Batch> batch = BatchOf(tensors);
      if (!batch.ok()) return ToTensorFlow(batch.status());
      state.rows = *std::move(batch);
    }
    if (state.slots > rows) return absl::DataLossError("the saved state of a shuffle is damaged");
    // The later passes get the same numbers as without the restore.
    if (dataset()->attributes_.reshuffle_each_iteration) dataset()->passes_->store(pass_ + 1);
    rebatcher_ = std::make_unique<columnar::Rebatcher>(dataset()->OptionsOf(pass_));
    rebatcher_->Restore(std::move(state));
    return absl::OkStatus();
  }

 private:
  // Converts an element of the input. All must have the same inner dimensions, because their rows are joined.
  Result<columnar::Batch> BatchOf(const std::vector<Tensor>& element) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::vector<int64_t>& ranks = dataset()->attributes_.ragged_ranks;
    columnar::Batch batch;
    std::vector<std::vector<int64_t>> shapes;
    size_t tensor = 0;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const Tensor& values = element[tensor];
      auto column = ColumnFromTensors(&values, static_cast<int>(ranks[i]));
      if (!column.ok()) return column.status().WithPrefix(absl::StrCat("component ", tensor, ": "));
      if (i > 0 && column->rows != batch.rows) {
        return InvalidArgument(
            absl::StrCat("component ", tensor, " has ", column->rows, " rows, and component 0 has ", batch.rows));
      }
      std::vector<int64_t>& shape = shapes.emplace_back();
      for (int d = 1; d < values.dims(); ++d) shape.push_back(values.dim_size(d));
      if (!shapes_.empty() && shape != shapes_[i]) {
        return InvalidArgument(absl::StrCat("component ", tensor, " has rows of shape ", values.shape().DebugString(),
                                            " after rows of another shape: they cannot be in one batch"));
      }
      batch.rows = column->rows;
      batch.columns.push_back(*std::move(column));
      tensor += 1 + ranks[i];
    }
    if (shapes_.empty()) shapes_ = std::move(shapes);
    return batch;
  }

  void Append(const columnar::Batch& batch, std::vector<Tensor>* out) const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    for (size_t i = 0; i < batch.columns.size(); ++i) {
      AppendTensors(batch.columns[i],
                    {batch.columns[i].type, static_cast<int>(dataset()->attributes_.ragged_ranks[i]), shapes_[i]}, out);
    }
  }

  absl::Mutex mutex_;
  std::unique_ptr<tfd::IteratorBase> input_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<columnar::Rebatcher> rebatcher_ ABSL_GUARDED_BY(mutex_);
  // The values' dimensions after the first, for each column; empty before the first batch.
  std::vector<std::vector<int64_t>> shapes_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t pass_ ABSL_GUARDED_BY(mutex_) = 0;
};

std::unique_ptr<tfd::IteratorBase> RebatchDataset::MakeIteratorInternal(const std::string& prefix) const {
  return std::make_unique<Iterator>(Iterator::Params{this, prefix + "::LockstepRebatch"});
}

// Makes the dataset of its inputs, and counts the passes if the dataset does not.
class RebatchDatasetOp : public tfd::UnaryDatasetOpKernel {
 public:
  explicit RebatchDatasetOp(tensorflow::OpKernelConstruction* ctx) : UnaryDatasetOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("ragged_ranks", &attributes_.ragged_ranks));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("drop_remainder", &attributes_.drop_remainder));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("reshuffle_each_iteration", &attributes_.reshuffle_each_iteration));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("passes", &attributes_.passes));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_types", &attributes_.output_types));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_shapes", &attributes_.output_shapes));
  }

 protected:
  void MakeDataset(tensorflow::OpKernelContext* ctx, tfd::DatasetBase* input, tfd::DatasetBase** output) override {
    RebatchDataset::Inputs inputs;
    OP_REQUIRES_OK(ctx, tfd::ParseScalarArgument<int64_t>(ctx, "batch_size", &inputs.batch_size));
    OP_REQUIRES_OK(ctx, tfd::ParseScalarArgument<int64_t>(ctx, "buffer_size", &inputs.buffer_size));
    OP_REQUIRES_OK(ctx, tfd::ParseScalarArgument<int64_t>(ctx, "seed", &inputs.seed));
    OP_REQUIRES_OK(ctx, tfd::ParseScalarArgument<int64_t>(ctx, "seed2", &inputs.seed2));
    OP_REQUIRES(ctx, inputs.batch_size >= 1,
                absl::InvalidArgumentError(absl::StrCat("batch_size is ", inputs.batch_size, ", wanted 1 or more")));
    OP_REQUIRES(ctx, inputs.buffer_size >= 0,
                absl::InvalidArgumentError(absl::StrCat("buffer_size is ", inputs.buffer_size, ", wanted 0 or more")));
    // As in tf.data, the seed is random if none is given.
    if (inputs.seed == 0 && inputs.seed2 == 0) inputs.seed = static_cast<int64_t>(std::random_device()()) + 1;
    size_t tensors = 0;
    for (int64_t rank : attributes_.ragged_ranks) tensors += 1 + rank;
    OP_REQUIRES(
        ctx, tensors == input->output_dtypes().size() && tensors == attributes_.output_types.size(),
        absl::InvalidArgumentError(absl::StrCat("the columns have ", tensors, " tensors, and an element of the ",
                                                "dataset has ", input->output_dtypes().size())));
    *output = new RebatchDataset(ctx, input, inputs, attributes_, PassesOf(attributes_.passes));
  }

 private:
  RebatchAttributes attributes_;
};

REGISTER_KERNEL_BUILDER(Name("LockstepRebatchDataset").Device(tensorflow::DEVICE_CPU), RebatchDatasetOp);

}  // namespace
}  // namespace lockstep
