// LockstepParquetDataset: core/columnar as a tf.data source. This file only translates: the op's inputs and attributes
// to options, batches to tensors, and the position to and from a checkpoint.
//
//   kernel ParquetDatasetOp      reads inputs and attributes when a dataset is made
//     -> ParquetDataset          the options; and the Source (files and footers), made at first use for all iterators
//       -> Iterator              one pass: a Reader with its threads, and a position
//
// An element is the tensors of all fields one after another, 1 + ragged_rank for each field (AppendTensors). Python
// packs them into a dict of tensors and ragged tensors.
//
// Errors are the core's, through ToTensorFlow: errors of options when the dataset is made, of files when an iterator is
// initialized, of rows when their batch is requested. The end of data is not a status, but a flag here.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/capi/apart_warning.h"
#include "core/columnar/reader.h"
#include "core/columnar/source.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/platform/logging.h"
#include "tf/bridge/columns.h"
#include "tf/bridge/convert.h"

namespace lockstep {
namespace {

namespace tfd = ::tensorflow::data;
using tensorflow::AttrValue;
using tensorflow::DataTypeVector;
using tensorflow::Node;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::tstring;

// The state that an iterator saves under its prefix: an int64, the number of the share's rows that it has returned, and
// the SourceIdentity of these rows: string [files], int64 [files], int64. The position counts rows and is therefore
// also valid for another number of threads. Restoring opens only the row groups after it.
constexpr char kPosition[] = "position";
constexpr char kPaths[] = "files";
constexpr char kContents[] = "contents";
constexpr char kOrder[] = "order";

}  // namespace

// The op behind Python's ParquetDataset, its only user. Inputs are values that a graph may compute: the file names [n]
// and three scalars. Attributes determine the tensors' types and shapes, or affect only speed. For each field there are
// a name, dtype, ragged rank, shape of the fixed dimensions, and a default or none. For each tensor of an element there
// are output_types and output_shapes, in the order of AppendTensors.
REGISTER_OP("LockstepParquetDataset")
    .Input("filenames: string")
    .Input("batch_size: int64")
    .Input("partition_count: int64")
    .Input("partition_index: int64")
    .Output("handle: variant")
    .Attr("field_names: list(string) >= 1")
    .Attr("field_types: list(type) >= 1")
    .Attr("field_ragged_ranks: list(int) >= 1")
    .Attr("field_shapes: list(shape) >= 1")
    // For each field, no string or one: the bytes of a value.
    .Attr("field_has_defaults: list(bool) >= 1")
    .Attr("field_defaults: list(string) >= 1")
    .Attr("partition_by: {'rows', 'row_groups', 'batches'} = 'rows'")
    // The words of columnar::ParseFilter.
    .Attr("filters: list(string) = []")
    // The words of columnar::Checksums.
    .Attr("checksums: list(string) = []")
    .Attr("skip_corrupted_data: bool = false")
    .Attr("drop_remainder: bool = false")
    .Attr("num_parallel_reads: int = 1")
    .Attr("num_sequential_reads: int = 1")
    // 0: chosen by the reader.
    .Attr("num_threads: int = 0")
    .Attr("piece_rows: int = 0")
    .Attr("output_types: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    // A source must not be folded into a constant.
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

namespace {

// The op's attributes, unchanged, so that the dataset can be written to a graph again. Lists have one entry for each
// field; output_types and output_shapes have one for each tensor.
struct ParquetAttributes {
  std::vector<std::string> field_names;
  DataTypeVector field_types;
  std::vector<int64_t> field_ragged_ranks;
  std::vector<PartialTensorShape> field_shapes;
  std::vector<bool> field_has_defaults;
  std::vector<std::string> field_defaults;
  std::string partition_by;
  std::vector<std::string> filters;
  std::vector<std::string> checksums;
  bool skip_corrupted_data;
  bool drop_remainder;
  int64_t num_parallel_reads;
  int64_t num_sequential_reads;
  int64_t num_threads;
  int64_t piece_rows;
  DataTypeVector output_types;
  std::vector<PartialTensorShape> output_shapes;

  // Calls `visit(name, member)` for each attribute: the one list of names, for reading and for writing.
  template <typename Self, typename Visit>
  static void ForEach(Self& self, const Visit& visit) {
    visit("field_names", self.field_names);
    visit("field_types", self.field_types);
    visit("field_ragged_ranks", self.field_ragged_ranks);
    visit("field_shapes", self.field_shapes);
    visit("field_has_defaults", self.field_has_defaults);
    visit("field_defaults", self.field_defaults);
    visit("partition_by", self.partition_by);
    visit("filters", self.filters);
    visit("checksums", self.checksums);
    visit("skip_corrupted_data", self.skip_corrupted_data);
    visit("drop_remainder", self.drop_remainder);
    visit("num_parallel_reads", self.num_parallel_reads);
    visit("num_sequential_reads", self.num_sequential_reads);
    visit("num_threads", self.num_threads);
    visit("piece_rows", self.piece_rows);
    visit("output_types", self.output_types);
    visit("output_shapes", self.output_shapes);
  }
};

// Returns field number i. A number's default comes as the bytes of a value of the right dtype, made by Python.
Result<columnar::Field> FieldOf(const ParquetAttributes& attributes, size_t i) {
  columnar::Field field;
  field.name = attributes.field_names[i];
  const std::optional<columnar::ValueType> type = ToValueType(attributes.field_types[i]);
  if (!type) {
    return InvalidArgument("field '" + field.name + "': a column cannot have dtype " +
                           tensorflow::DataTypeString(attributes.field_types[i]));
  }
  field.type.value = *type;
  field.type.ragged_rank = static_cast<int>(attributes.field_ragged_ranks[i]);
  tensorflow::TensorShape shape;
  if (!attributes.field_shapes[i].AsTensorShape(&shape)) {
    return InvalidArgument("field '" + field.name + "': shape " + attributes.field_shapes[i].DebugString() +
                           " is not fully known");
  }
  for (int d = 0; d < shape.dims(); ++d) field.type.shape.push_back(shape.dim_size(d));
  if (attributes.field_has_defaults[i]) field.default_value = attributes.field_defaults[i];
  return field;
}

// Returns all options that are not inputs (these are files, batch size and share).
Result<columnar::SourceOptions> OptionsOf(const ParquetAttributes& attributes) {
  columnar::SourceOptions options;
  const size_t fields = attributes.field_names.size();
  if (attributes.field_types.size() != fields || attributes.field_ragged_ranks.size() != fields ||
      attributes.field_shapes.size() != fields || attributes.field_has_defaults.size() != fields ||
      attributes.field_defaults.size() != fields) {
    return InvalidArgument("the lists that describe fields differ in length");
  }
  size_t tensors = 0;
  for (size_t i = 0; i < fields; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(columnar::Field field, FieldOf(attributes, i));
    tensors += 1 + field.type.ragged_rank;
    options.fields.push_back(std::move(field));
  }
  if (attributes.output_types.size() != tensors || attributes.output_shapes.size() != tensors) {
    return InvalidArgument("the fields have " + std::to_string(tensors) + " tensors, but there are " +
                           std::to_string(attributes.output_types.size()) + " output types");
  }
  options.plan.partition_by = attributes.partition_by == "rows"         ? columnar::PartitionBy::kRows
                              : attributes.partition_by == "row_groups" ? columnar::PartitionBy::kRowGroups
                                                                        : columnar::PartitionBy::kBatches;
  LOCKSTEP_ASSIGN_OR_RETURN(options.filter, columnar::ParseFilter(attributes.filters));
  LOCKSTEP_ASSIGN_OR_RETURN(options.checksums, columnar::Checksums::Parse(attributes.checksums));
  options.plan.parallel_files = attributes.num_parallel_reads;
  options.plan.sequential_batches = attributes.num_sequential_reads;
  options.skip_corrupted = attributes.skip_corrupted_data;
  options.drop_remainder = attributes.drop_remainder;
  if (attributes.num_threads != 0) options.threads = attributes.num_threads;
  if (attributes.piece_rows != 0) options.piece_rows = attributes.piece_rows;
  return options;
}

// The dataset: options, and the files' footers once they are needed. Immutable to TensorFlow, which counts its
// references; iterators on any threads share it.
class ParquetDataset : public tfd::DatasetBase {
 public:
  ParquetDataset(tensorflow::OpKernelContext* ctx, columnar::SourceOptions options, ParquetAttributes attributes)
      : DatasetBase(tfd::DatasetContext(ctx)), options_(std::move(options)), attributes_(std::move(attributes)) {}

  const DataTypeVector& output_dtypes() const override { return attributes_.output_types; }
  const std::vector<PartialTensorShape>& output_shapes() const override { return attributes_.output_shapes; }
  std::string DebugString() const override { return "LockstepParquetDatasetOp::Dataset"; }
  absl::Status InputDatasets(std::vector<const DatasetBase*>* inputs) const override {
    inputs->clear();
    return absl::OkStatus();
  }
  // A source has no input datasets, and no state outside of the files. This allows saving an iterator.
  absl::Status CheckExternalState() const override { return absl::OkStatus(); }

  // Returns the number of batches of this worker's share, unknown with a filter. It needs the footers, so a query that
  // must be cheap gets no answer before they are known. Dataset.cardinality() asks without a level. If files cannot be
  // read the number is unknown; their error comes when an iterator is made.
  int64_t CardinalityInternal(tfd::CardinalityOptions options) const override {
    if (options.compute_level() == tfd::CardinalityOptions::CARDINALITY_COMPUTE_LOW) {
      absl::MutexLock lock(&mutex_);
      return source_ == nullptr ? tfd::kUnknownCardinality : source_->batches().value_or(tfd::kUnknownCardinality);
    }
    const Result<std::shared_ptr<const columnar::Source>> source = GetSource();
    return source.ok() ? (*source)->batches().value_or(tfd::kUnknownCardinality) : tfd::kUnknownCardinality;
  }

  std::unique_ptr<tfd::IteratorBase> MakeIteratorInternal(const std::string& prefix) const override;

 protected:
  // Writes the dataset as a node of a graph: for checkpoints of iterators, and for rewrites of the input pipeline.
  // Inputs become constants.
  absl::Status AsGraphDefInternal(tfd::SerializationContext* ctx, DatasetGraphDefBuilder* b,
                                  Node** output) const override {
    Node *filenames, *batch_size, *partition_count, *partition_index;
    const std::vector<tstring> paths(options_.paths.begin(), options_.paths.end());
    TF_RETURN_IF_ERROR(b->AddVector(paths, &filenames));
    TF_RETURN_IF_ERROR(b->AddScalar(options_.plan.batch_size, &batch_size));
    TF_RETURN_IF_ERROR(b->AddScalar(options_.plan.partition_count, &partition_count));
    TF_RETURN_IF_ERROR(b->AddScalar(options_.plan.partition_index, &partition_index));
    std::vector<std::pair<absl::string_view, AttrValue>> attributes;
    ParquetAttributes::ForEach(attributes_, [&](const char* name, const auto& member) {
      AttrValue value;
      b->BuildAttrValue(member, &value);
      attributes.emplace_back(name, std::move(value));
    });
    return b->AddDataset(this, {{0, filenames}, {1, batch_size}, {2, partition_count}, {3, partition_index}}, {},
                         attributes, output);
  }

 private:
  class Iterator;

  // Reads the files' footers at the first call; concurrent calls wait. A failure is not remembered. The source is kept
  // for the life of the dataset, so later epochs open no footer for planning.
  Result<std::shared_ptr<const columnar::Source>> GetSource() const {
    absl::MutexLock lock(&mutex_);
    if (source_ == nullptr) {
      LOCKSTEP_ASSIGN_OR_RETURN(source_, columnar::Source::Make(options_));
      for (const columnar::Source::File& file : source_->files()) {
        if (!file.unreadable.ok()) LOG(WARNING) << "a file is left out: " << file.unreadable.message();
      }
    }
    return source_;
  }

  const columnar::SourceOptions options_;
  const ParquetAttributes attributes_;
  // Held while footers are read, by the first caller.
  mutable absl::Mutex mutex_;
  mutable std::shared_ptr<const columnar::Source> source_ ABSL_GUARDED_BY(mutex_);
};

// One pass. Decoding begins when the first element is requested, so an iterator that is restored first, or never used,
// decodes nothing in vain. After an error the same error comes again; after the end, the end.
class ParquetDataset::Iterator : public tfd::DatasetIterator<ParquetDataset> {
 public:
  explicit Iterator(const Params& params) : DatasetIterator<ParquetDataset>(params) {}

  absl::Status Initialize(tfd::IteratorContext* ctx) override {
    auto source = dataset()->GetSource();
    if (!source.ok()) return ToTensorFlow(source.status());
    absl::MutexLock lock(&mutex_);
    source_ = *std::move(source);
    return absl::OkStatus();
  }

 protected:
  // Several threads may call it: each gets another batch. A call waits with mutex_ held, and saving waits for that
  // mutex too; a cancellation does not need it.
  absl::Status GetNextInternal(tfd::IteratorContext* ctx, std::vector<Tensor>* out, bool* end_of_sequence) override {
    if (dataset()->options_.plan.partition_count > 1) ProcessApartWarning().NoteRead();
    absl::MutexLock lock(&mutex_);
    // Threads start here, and open the files again.
    if (reader_ == nullptr) reader_ = std::make_unique<columnar::Reader>(source_, position_);
    tensorflow::CancellationManager* cancellation = ctx->cancellation_manager();
    tensorflow::CancellationToken token = 0;
    if (cancellation != nullptr) {
      // The reader outlives the callback. The callback is deregistered below before the mutex is released, and this
      // waits for a running callback.
      token = cancellation->get_cancellation_token();
      columnar::Reader* reader = reader_.get();
      if (!cancellation->RegisterCallback(token, [reader] { reader->Cancel(); })) {
        return absl::CancelledError("the iterator was cancelled");
      }
    }
    auto batch = reader_->Next();
    if (cancellation != nullptr) cancellation->DeregisterCallback(token);
    if (!batch.ok()) return ToTensorFlow(batch.status());
    *end_of_sequence = batch->rows == 0;
    const std::vector<columnar::Field>& fields = dataset()->options_.fields;
    for (size_t i = 0; i < batch->columns.size(); ++i) {
      AppendTensors(batch->columns[i], fields[i].type, out);
    }
    position_ = reader_->position();
    WarnOfRefused(*end_of_sequence);
    return absl::OkStatus();
  }

  // For tf.data's tuning: a source has nothing to tune.
  std::shared_ptr<tfd::model::Node> CreateNode(tfd::IteratorContext* ctx, tfd::model::Node::Args args) const override {
    return tfd::model::MakeSourceNode(std::move(args));
  }

  // Runs between two batches, because mutex_ is held while a batch is fetched.
  absl::Status SaveInternal(tfd::SerializationContext* ctx, tfd::IteratorStateWriter* writer) override {
    absl::MutexLock lock(&mutex_);
    TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), kPosition, position_));
    const columnar::SourceIdentity identity = source_->identity();
    const auto files = static_cast<int64_t>(identity.paths.size());
    Tensor paths(tensorflow::DT_STRING, {files}), contents(tensorflow::DT_INT64, {files});
    std::copy(identity.paths.begin(), identity.paths.end(), paths.flat<tstring>().data());
    std::copy(identity.contents.begin(), identity.contents.end(), contents.flat<int64_t>().data());
    TF_RETURN_IF_ERROR(writer->WriteTensor(prefix(), kPaths, paths));
    TF_RETURN_IF_ERROR(writer->WriteTensor(prefix(), kContents, contents));
    return writer->WriteScalar(prefix(), kOrder, identity.order);
  }

  // The next batch makes a new reader at the position. Destroying the old one waits for its threads, at most for the
  // column that each is decoding.
  absl::Status RestoreInternal(tfd::IteratorContext* ctx, tfd::IteratorStateReader* reader) override {
    absl::MutexLock lock(&mutex_);
    columnar::SourceIdentity saved;
    Tensor paths, contents;
    TF_RETURN_IF_ERROR(reader->ReadTensor(prefix(), kPaths, &paths));
    TF_RETURN_IF_ERROR(reader->ReadTensor(prefix(), kContents, &contents));
    TF_RETURN_IF_ERROR(reader->ReadScalar(prefix(), kOrder, &saved.order));
    if (paths.dtype() != tensorflow::DT_STRING || contents.dtype() != tensorflow::DT_INT64) {
      return absl::DataLossError(absl::StrCat("the saved position has files of type ", DataTypeString(paths.dtype()),
                                              " and contents of type ", DataTypeString(contents.dtype()),
                                              ", wanted string and int64"));
    }
    for (int64_t i = 0; i < paths.NumElements(); ++i) saved.paths.emplace_back(paths.flat<tstring>()(i));
    for (int64_t i = 0; i < contents.NumElements(); ++i) saved.contents.push_back(contents.flat<int64_t>()(i));
    // A position is valid only for the same rows: in other data it would mean other rows.
    TF_RETURN_IF_ERROR(ToTensorFlow(source_->identity().Check(saved)));
    TF_RETURN_IF_ERROR(reader->ReadScalar(prefix(), kPosition, &position_));
    reader_ = nullptr;
    warned_of_ = 0;
    warned_at_end_ = false;
    return absl::OkStatus();
  }

 private:
  // Logs the number of rows that were left out: at the first one, whenever the number has doubled, and at the end.
  void WarnOfRefused(bool end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int64_t rows = reader_->refused_rows();
    if (rows == 0 || (end ? warned_at_end_ : rows < 2 * warned_of_)) return;
    warned_of_ = rows;
    warned_at_end_ = end;
    LOG(WARNING) << rows << (rows == 1 ? " row was" : " rows were") << " left out as corrupted up to position "
                 << position_ << (end ? ", the end of the data" : "")
                 << "; the first: " << reader_->first_refused().message();
  }

  // Guards all of an iterator's state.
  absl::Mutex mutex_;
  std::shared_ptr<const columnar::Source> source_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<columnar::Reader> reader_ ABSL_GUARDED_BY(mutex_);
  int64_t position_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t warned_of_ ABSL_GUARDED_BY(mutex_) = 0;
  bool warned_at_end_ ABSL_GUARDED_BY(mutex_) = false;
};

std::unique_ptr<tfd::IteratorBase> ParquetDataset::MakeIteratorInternal(const std::string& prefix) const {
  return std::make_unique<Iterator>(Iterator::Params{this, prefix + "::LockstepParquet"});
}

// The kernel that makes the dataset of its inputs. The constructor only reads the attributes; each dataset checks
// whether they fit together.
class ParquetDatasetOp : public tfd::DatasetOpKernel {
 public:
  explicit ParquetDatasetOp(tensorflow::OpKernelConstruction* ctx) : DatasetOpKernel(ctx) {
    ParquetAttributes::ForEach(
        attributes_, [&](const char* name, auto& member) { OP_REQUIRES_OK(ctx, ctx->GetAttr(name, &member)); });
  }

 protected:
  void MakeDataset(tensorflow::OpKernelContext* ctx, tfd::DatasetBase** output) override {
    Result<columnar::SourceOptions> options = OptionsOf(attributes_);
    OP_REQUIRES_OK(ctx, ToTensorFlow(options.status()));
    std::vector<tstring> filenames;
    OP_REQUIRES_OK(ctx, tfd::ParseVectorArgument<tstring>(ctx, "filenames", &filenames));
    options->paths.assign(filenames.begin(), filenames.end());
    columnar::PlanOptions& plan = options->plan;
    OP_REQUIRES_OK(ctx, tfd::ParseScalarArgument<int64_t>(ctx, "batch_size", &plan.batch_size));
    OP_REQUIRES_OK(ctx, tfd::ParseScalarArgument<int64_t>(ctx, "partition_count", &plan.partition_count));
    OP_REQUIRES_OK(ctx, tfd::ParseScalarArgument<int64_t>(ctx, "partition_index", &plan.partition_index));
    OP_REQUIRES_OK(ctx, ToTensorFlow(options->Validate()));
    *output = new ParquetDataset(ctx, *std::move(options), attributes_);
  }

 private:
  ParquetAttributes attributes_;
};

REGISTER_KERNEL_BUILDER(Name("LockstepParquetDataset").Device(tensorflow::DEVICE_CPU), ParquetDatasetOp);

}  // namespace
}  // namespace lockstep
