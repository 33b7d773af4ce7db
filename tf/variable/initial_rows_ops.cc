// Compute a worker's rows of a table's initial value. LockstepInitialRows draws the rows of a random table, with the
// bits that TensorFlow's own ops draw for the whole table. LockstepRepeatRow makes the rows of a table of equal rows.
//
//   key, counter, operands -> LockstepInitialRows -> rows
//   row -> LockstepRepeatRow -> rows
//
//   tensor     shape               dtype                            is
//   key        [1]                 uint64                           the key of the Philox generator
//   counter    [2]                 uint64                           where the generator begins
//   operands   [] or [D...] each   half, bfloat16, float, double    the operand of each step
//   row        [D...]              any of fixed size                the value of each row
//   rows       [L, D...]           as the operands or the row       this worker's rows of the table [num_rows, D...]
//
// TensorFlow draws a tensor in groups of a few elements. Group g comes from the generator after a number of skips that
// is proportional to g, so that threads can share the work. So a draw may enter the stream at any group. Groups and
// rows are independent: a row may begin in the middle of a group.
//
// The steps that follow (a product and a sum for a scale and an offset) are computed on a piece of the rows while it is
// in the cache. Each step rounds to the dtype, like the kernel of its own in TensorFlow. So the share is the only
// memory.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/sharding/placement.h"
#include "tensorflow/core/framework/bfloat16.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/random/philox_random.h"
#include "tensorflow/core/lib/random/random_distributions.h"
#include "tf/bridge/convert.h"
#include "tf/bridge/parallel.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;
using tf::random::PhiloxRandom;
using tf::shape_inference::DimensionHandle;
using tf::shape_inference::InferenceContext;

// Returns the generator of a key and a counter, as TensorFlow stores them: the lower half of each number comes first.
PhiloxRandom GeneratorOf(uint64_t key, std::span<const uint64_t> counter) {
  PhiloxRandom::ResultType words;
  for (int i = 0; i < 2; ++i) {
    words[2 * i] = static_cast<uint32_t>(counter[i]);
    words[2 * i + 1] = static_cast<uint32_t>(counter[i] >> 32);
  }
  PhiloxRandom::Key halves;
  halves[0] = static_cast<uint32_t>(key);
  halves[1] = static_cast<uint32_t>(key >> 32);
  return PhiloxRandom(words, halves);
}

// Draws any range of the elements of a tensor that TensorFlow would fill from `generator`.
template <typename Distribution>
class Stream {
 public:
  using T = typename Distribution::ResultElementType;

  explicit Stream(const PhiloxRandom& generator) : generator_(generator) {}

  // Writes elements [begin, begin + count) of the tensor to `out`.
  void Draw(int64_t begin, int64_t count, T* out) const {
    int64_t group = begin / kGroup;
    PhiloxRandom generator = generator_;
    generator.Skip(static_cast<uint64_t>(group) * kSkip);
    // The elements of the first group that lie before the range.
    for (int64_t before = begin % kGroup; count > 0; before = 0) {
      const auto samples = NextGroup(&generator);
      const int64_t taken = std::min(kGroup - before, count);
      for (int64_t i = 0; i < taken; ++i) out[i] = samples[static_cast<int>(before + i)];
      out += taken;
      count -= taken;
    }
  }

 private:
  static constexpr bool kRejects = Distribution::kVariableSamplesPerOutput;
  static constexpr int64_t kGroup = Distribution::kResultElementCount;
  // A distribution that rejects samples takes any number of them. TensorFlow reserves 256 for each element
  // (FillPhiloxRandomTask in tensorflow/core/kernels/random_op_cpu.h). One skip is four samples.
  static constexpr uint64_t kSkip = kRejects ? kGroup * 256 / PhiloxRandom::kResultElementCount : 1;

  // Returns the samples of the group where the generator is, and moves it to the next group.
  static auto NextGroup(PhiloxRandom* generator) {
    Distribution distribution;
    if constexpr (kRejects) {
      PhiloxRandom own = *generator;
      generator->Skip(kSkip);
      tf::random::SingleSampleAdapter<PhiloxRandom> single(&own);
      return distribution(&single);
    } else {
      return distribution(generator);
    }
  }

  PhiloxRandom generator_;
};

// An elementwise step on drawn values x, with an operand o.
enum class StepKind : uint8_t { kAdd, kMul, kSub, kReverseSub, kDiv, kReverseDiv };

Result<StepKind> ToStepKind(const std::string& name) {
  if (name == "add") return StepKind::kAdd;
  if (name == "mul") return StepKind::kMul;
  if (name == "sub") return StepKind::kSub;
  if (name == "reverse_sub") return StepKind::kReverseSub;
  if (name == "div") return StepKind::kDiv;
  if (name == "reverse_div") return StepKind::kReverseDiv;
  return InvalidArgument(
      absl::StrCat("got the step '", name, "', wanted add, mul, sub, reverse_sub, div, reverse_div"));
}

template <typename T>
struct Step {
  StepKind kind;
  const T* operand;
  bool is_scalar;

  // Applies the step to `rows` rows of `width` elements.
  void Apply(T* x, int64_t rows, int64_t width) const {
    switch (kind) {
      case StepKind::kAdd: return ApplyTo(x, rows, width, [](T x, T o) { return x + o; });
      case StepKind::kMul: return ApplyTo(x, rows, width, [](T x, T o) { return x * o; });
      case StepKind::kSub: return ApplyTo(x, rows, width, [](T x, T o) { return x - o; });
      case StepKind::kReverseSub: return ApplyTo(x, rows, width, [](T x, T o) { return o - x; });
      case StepKind::kDiv: return ApplyTo(x, rows, width, [](T x, T o) { return x / o; });
      case StepKind::kReverseDiv: return ApplyTo(x, rows, width, [](T x, T o) { return o / x; });
    }
  }

 private:
  template <typename Function>
  void ApplyTo(T* x, int64_t rows, int64_t width, Function function) const {
    if (is_scalar) {
      const T o = *operand;
      for (int64_t i = 0; i < rows * width; ++i) x[i] = function(x[i], o);
      return;
    }
    for (int64_t row = 0; row < rows; ++row, x += width) {
      for (int64_t i = 0; i < width; ++i) x[i] = function(x[i], operand[i]);
    }
  }
};

class InitialRowsKernel : public tf::OpKernel {
 public:
  explicit InitialRowsKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    int64_t rows = 0, block = 1, first = 0;
    std::vector<std::string> names;
    OP_REQUIRES_OK(construction, construction->GetAttr("num_rows", &rows));
    OP_REQUIRES_OK(construction, construction->GetAttr("block", &block));
    OP_REQUIRES_OK(construction, construction->GetAttr("first_rank", &first));
    OP_REQUIRES_OK(construction, construction->GetAttr("rank", &rank_));
    OP_REQUIRES_OK(construction, construction->GetAttr("world_size", &world_size_));
    OP_REQUIRES_OK(construction, construction->GetAttr("row_shape", &row_shape_));
    OP_REQUIRES_OK(construction, construction->GetAttr("dtype", &type_));
    OP_REQUIRES_OK(construction, construction->GetAttr("distribution", &distribution_));
    OP_REQUIRES_OK(construction, construction->GetAttr("steps", &names));
    OP_REQUIRES(construction, rank_ < world_size_ && first < world_size_,
                absl::InvalidArgumentError(absl::StrCat("'", construction->def().name(), "': got rank ", rank_,
                                                        " and first rank ", first, " of ", world_size_)));
    placement_ = Placement(rows, block, static_cast<int>(first));
    for (const std::string& name : names) {
      Result<StepKind> kind = ToStepKind(name);
      OP_REQUIRES_OK(construction, ToTensorFlow(kind.status()));
      steps_.push_back(*kind);
    }
  }

  void Compute(tf::OpKernelContext* context) override {
    context->SetStatus(ToTensorFlow(Run(context).WithPrefix(absl::StrCat("'", name(), "': "))));
  }

 private:
  static constexpr int kOperands = 2;  // the first input that is an operand
  // Elements that are drawn before the steps follow, so that they stay in the cache of the first level.
  static constexpr int64_t kPiece = 2048;
  // Elements for which another thread is worth its start, some 100 us of work.
  static constexpr int64_t kGrain = 16384;

  Status Run(tf::OpKernelContext* context) const {
    const tf::Tensor &key = context->input(0), &counter = context->input(1);
    if (key.NumElements() != 1 || counter.NumElements() != 2) {
      return InvalidArgument(absl::StrCat("got a key of shape ", key.shape().DebugString(), " and a counter of shape ",
                                          counter.shape().DebugString(), ", wanted [1] and [2], as Philox has"));
    }
    if (context->num_inputs() - kOperands != static_cast<int>(steps_.size())) {
      return InvalidArgument(absl::StrCat("got ", context->num_inputs() - kOperands, " operands for ", steps_.size(),
                                          " steps, wanted one for each"));
    }
    for (int i = kOperands; i < context->num_inputs(); ++i) {
      const tf::Tensor& operand = context->input(i);
      if (operand.dtype() != type_ || (operand.dims() != 0 && operand.shape() != row_shape_)) {
        return InvalidArgument(absl::StrCat("got an operand ", tf::DataTypeString(operand.dtype()), " of shape ",
                                            operand.shape().DebugString(), ", wanted ", tf::DataTypeString(type_),
                                            ", a scalar or ", row_shape_.DebugString()));
      }
    }
    switch (type_) {
      case tf::DT_HALF: return RunFor<Eigen::half>(context);
      case tf::DT_BFLOAT16: return RunFor<tf::bfloat16>(context);
      case tf::DT_DOUBLE: return RunFor<double>(context);
      default: return RunFor<float>(context);
    }
  }

  template <typename T>
  Status RunFor(tf::OpKernelContext* context) const {
    if (distribution_ == "uniform") return Fill<tf::random::UniformDistribution<PhiloxRandom, T>>(context);
    if (distribution_ == "normal") return Fill<tf::random::NormalDistribution<PhiloxRandom, T>>(context);
    using Single = tf::random::SingleSampleAdapter<PhiloxRandom>;
    return Fill<tf::random::TruncatedNormalDistribution<Single, T>>(context);
  }

  template <typename Distribution>
  Status Fill(tf::OpKernelContext* context) const {
    using T = typename Distribution::ResultElementType;
    tf::TensorShape shape = row_shape_;
    shape.InsertDim(0, LocalRows());
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * out, AllocateTensor(context, 0, shape));
    if (out->NumElements() == 0) return OkStatus();
    std::vector<Step<T>> steps;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const tf::Tensor& operand = context->input(kOperands + static_cast<int>(i));
      steps.push_back({steps_[i], static_cast<const T*>(Data(operand)), operand.dims() == 0});
    }
    const Stream<Distribution> stream(
        GeneratorOf(AsSpan<uint64_t>(context->input(0))[0], AsSpan<uint64_t>(context->input(1))));
    const int64_t width = row_shape_.num_elements();
    auto* const data = static_cast<T*>(Data(*out));
    const auto work = [&](int64_t begin, int64_t end) {
      while (begin < end) {
        const int64_t rows = std::min(end - begin, std::max<int64_t>(kPiece / width, 1));
        DrawRows(stream, begin, rows, width, data + begin * width);
        for (const Step<T>& step : steps) step.Apply(data + begin * width, rows, width);
        begin += rows;
      }
    };
    ParallelForOf(context)(shape.dim_size(0), std::max<int64_t>(kGrain / width, 1), work);
    return OkStatus();
  }

  // Draws local rows [begin, begin + rows). Neighbours that are also neighbours in the table are drawn at once.
  template <typename Distribution, typename T = typename Distribution::ResultElementType>
  void DrawRows(const Stream<Distribution>& stream, int64_t begin, int64_t rows, int64_t width, T* out) const {
    const int rank = static_cast<int>(rank_), size = static_cast<int>(world_size_);
    for (int64_t row = begin, end = begin + rows; row < end;) {
      const int64_t block_end = size == 1 ? end : (row / placement_.block + 1) * placement_.block;
      const int64_t neighbours = std::min(end, block_end) - row;
      stream.Draw(placement_.GlobalRow(row, rank, size) * width, neighbours * width, out);
      out += neighbours * width;
      row += neighbours;
    }
  }

  int64_t LocalRows() const { return placement_.LocalRows(static_cast<int>(rank_), static_cast<int>(world_size_)); }

  Placement placement_{0};
  int64_t rank_ = 0;
  int64_t world_size_ = 1;
  tf::TensorShape row_shape_;
  tf::DataType type_ = tf::DT_FLOAT;
  std::string distribution_;
  std::vector<StepKind> steps_;
};

class RepeatRowKernel : public tf::OpKernel {
 public:
  explicit RepeatRowKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("num_rows", &rows_));
    tf::DataType type = tf::DT_FLOAT;
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &type));
    OP_REQUIRES(construction, tf::DataTypeCanUseMemcpy(type),
                absl::InvalidArgumentError(absl::StrCat("'", construction->def().name(), "': got rows of ",
                                                        tf::DataTypeString(type), ", wanted elements of fixed size")));
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& row = context->input(0);
    tf::TensorShape shape = row.shape();
    shape.InsertDim(0, rows_);
    const Result<tf::Tensor*> out = AllocateTensor(context, 0, shape);
    OP_REQUIRES_OK(context, ToTensorFlow(out.status()));
    if ((*out)->NumElements() == 0) return;
    const auto row_bytes = static_cast<int64_t>(row.tensor_data().size());
    const auto work = [&](int64_t begin, int64_t end) {
      char* const rows = static_cast<char*>(Data(**out)) + begin * row_bytes;
      std::memcpy(rows, Data(row), row_bytes);
      // Each copy doubles the rows that are there, up to a piece that stays in the cache.
      const int64_t piece = std::max<int64_t>(kPieceBytes / row_bytes, 1) * row_bytes;
      for (int64_t done = row_bytes, bytes = (end - begin) * row_bytes; done < bytes;) {
        const int64_t copied = std::min({done, piece, bytes - done});
        std::memcpy(rows + done, rows, copied);
        done += copied;
      }
    };
    ParallelForOf(context)(rows_, std::max<int64_t>(kGrainBytes / row_bytes, 1), work);
  }

 private:
  static constexpr int64_t kPieceBytes = 16 << 10;
  static constexpr int64_t kGrainBytes = 1 << 20;

  int64_t rows_ = 0;
};

absl::Status InitialRowsShapes(InferenceContext* c) {
  int64_t rows = 0, block = 1, first = 0, rank = 0, size = 1;
  tf::TensorShape shape;
  TF_RETURN_IF_ERROR(c->GetAttr("num_rows", &rows));
  TF_RETURN_IF_ERROR(c->GetAttr("block", &block));
  TF_RETURN_IF_ERROR(c->GetAttr("first_rank", &first));
  TF_RETURN_IF_ERROR(c->GetAttr("rank", &rank));
  TF_RETURN_IF_ERROR(c->GetAttr("world_size", &size));
  TF_RETURN_IF_ERROR(c->GetAttr("row_shape", &shape));
  const Placement placement(rows, block, static_cast<int>(first));
  std::vector<DimensionHandle> dims = {c->MakeDim(placement.LocalRows(static_cast<int>(rank), static_cast<int>(size)))};
  for (int i = 0; i < shape.dims(); ++i) dims.push_back(c->MakeDim(shape.dim_size(i)));
  c->set_output(0, c->MakeShape(dims));
  return absl::OkStatus();
}

REGISTER_KERNEL_BUILDER(Name("LockstepInitialRows").Device(tf::DEVICE_CPU), InitialRowsKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepRepeatRow").Device(tf::DEVICE_CPU), RepeatRowKernel);

absl::Status RepeatRowShapes(InferenceContext* c) {
  int64_t rows = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("num_rows", &rows));
  tf::shape_inference::ShapeHandle shape;
  TF_RETURN_IF_ERROR(c->Concatenate(c->Vector(rows), c->input(0), &shape));
  c->set_output(0, shape);
  return absl::OkStatus();
}

// Both ops are stateful, so that TensorFlow takes them for no constants. It would compute the rows while it optimizes
// the graph, find them too large to keep, and compute them again. A constant of equal elements (tf.fill) becomes an op
// that keeps all of them as long as the session lives. The variable's first update would then copy them.
REGISTER_OP("LockstepInitialRows")
    .Input("key: uint64")
    .Input("counter: uint64")
    .Input("operands: operand_types")
    .Output("rows: dtype")
    .Attr("dtype: {half, bfloat16, float, double}")
    .Attr("operand_types: list({half, bfloat16, float, double}) >= 0")
    .Attr("steps: list(string) >= 0")
    .Attr("distribution: {'uniform', 'normal', 'truncated_normal'}")
    .Attr("num_rows: int >= 0")
    .Attr("block: int >= 1 = 1")
    .Attr("first_rank: int >= 0 = 0")
    .Attr("rank: int >= 0")
    .Attr("world_size: int >= 1")
    .Attr("row_shape: shape")
    .SetIsStateful()
    .SetShapeFn(InitialRowsShapes)
    .Doc(R"doc(
Draws this worker's rows of a random table, with the bits that TensorFlow's own ops draw for the whole table.

key: [1]; as for StatelessRandomUniformV2.
counter: [2]; as for StatelessRandomUniformV2.
operands: a scalar or [D...], of each step.
rows: [L, D...]; L is this worker's number of rows.
steps: elementwise steps on the drawn values, in order; each rounds to the dtype. "reverse_sub" is the operand minus the value.
num_rows: the number of rows of the whole table.
block: the number of rows of a block; blocks are dealt to the workers in turn.
first_rank: the worker of the first block.
row_shape: D...
)doc");

REGISTER_OP("LockstepRepeatRow")
    .Input("row: T")
    .Output("rows: T")
    .Attr("T: type")
    .Attr("num_rows: int >= 0")
    .SetIsStateful()
    .SetShapeFn(RepeatRowShapes)
    .Doc(R"doc(
Returns `num_rows` equal rows.

row: [D...]; the value of each row.
rows: [num_rows, D...].
)doc");

}  // namespace
}  // namespace lockstep
