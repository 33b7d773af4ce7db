// Converts columns to tensors. A tensor's memory has to be aligned; a decoded piece is aligned only at its front and
// where a slice happens to begin at an aligned address. So each tensor is checked to decide whether it shares or copies
// its column. Both give the same values; only time and memory differ.
#include "tf/bridge/columns.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/allocator.h"

namespace lockstep {
namespace {

using columnar::Buffer;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// In the order of columnar::ValueType, which is the index.
constexpr std::array<tensorflow::DataType, 14> kDtypes = {
    tensorflow::DT_BOOL,  tensorflow::DT_INT8,   tensorflow::DT_INT16,  tensorflow::DT_INT32,   tensorflow::DT_INT64,
    tensorflow::DT_UINT8, tensorflow::DT_UINT16, tensorflow::DT_UINT32, tensorflow::DT_UINT64,  tensorflow::DT_HALF,
    tensorflow::DT_FLOAT, tensorflow::DT_DOUBLE, tensorflow::DT_STRING, tensorflow::DT_INVALID,
};

// A smaller tensor is copied: sharing it would keep a whole decoded piece alive to save a cheap copy. Shuffle buffers
// hold thousands of small batches, possibly each of another piece.
constexpr int64_t kLeastSharedBytes = 16 << 10;

// The memory of a column as the buffer of a tensor. It does not own the memory in TensorFlow's sense, so no operation
// writes its result in place over values that other tensors show: often two batches are cut out of one piece.
class ColumnBuffer : public tensorflow::TensorBuffer {
 public:
  explicit ColumnBuffer(Buffer buffer) : TensorBuffer(const_cast<void*>(buffer.data)), buffer_(std::move(buffer)) {}

  size_t size() const override { return buffer_.bytes; }
  TensorBuffer* root_buffer() override { return this; }
  bool OwnsMemory() const override { return false; }
  void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
    description->set_requested_bytes(buffer_.bytes);
    description->set_allocator_name("lockstep_columnar");
  }

 private:
  const Buffer buffer_;
};

// Makes a tensor of numbers or row splits. Kernels assume aligned memory and would crash on other memory. Slices of a
// piece begin anywhere, so every tensor is checked.
Tensor NumberTensor(const Buffer& buffer, tensorflow::DataType dtype, const TensorShape& shape) {
  const bool aligned = reinterpret_cast<uintptr_t>(buffer.data) % tensorflow::Allocator::kAllocatorAlignment == 0;
  if (aligned && buffer.bytes >= kLeastSharedBytes) {
    return Tensor(dtype, shape, tensorflow::core::RefCountPtr<tensorflow::TensorBuffer>(new ColumnBuffer(buffer)));
  }
  Tensor tensor(dtype, shape);
  if (buffer.bytes > 0) std::memcpy(tensor.data(), buffer.data, buffer.bytes);
  return tensor;
}

// TensorFlow keeps each string in its own object: short ones inside it, longer ones on the heap.
Tensor StringTensor(const columnar::Column& column, const TensorShape& shape) {
  Tensor tensor(tensorflow::DT_STRING, shape);
  auto* strings = static_cast<tensorflow::tstring*>(tensor.data());
  const auto* bytes = column.values.as<char>();
  const auto* offsets = column.offsets.as<int64_t>();
  for (int64_t i = 0; i < column.count; ++i) strings[i].assign(bytes + offsets[i], offsets[i + 1] - offsets[i]);
  return tensor;
}

// Returns the bytes of a tensor; the buffer keeps the tensor alive.
Buffer BufferOf(const Tensor& tensor) {
  auto owner = std::make_shared<const Tensor>(tensor);
  const auto bytes = owner->tensor_data();
  return {bytes.data(), static_cast<int64_t>(bytes.size()), owner};
}

// Writes the bytes of all strings one after the other, and the offset of each.
Status FillStrings(const Tensor& tensor, columnar::Column* column) {
  const auto strings = tensor.flat<tensorflow::tstring>();
  void* data = nullptr;
  LOCKSTEP_ASSIGN_OR_RETURN(column->offsets, columnar::AllocateBuffer((strings.size() + 1) * 8, &data));
  auto* offsets = static_cast<int64_t*>(data);
  offsets[0] = 0;
  for (int64_t i = 0; i < strings.size(); ++i) offsets[i + 1] = offsets[i] + static_cast<int64_t>(strings(i).size());
  LOCKSTEP_ASSIGN_OR_RETURN(column->values, columnar::AllocateBuffer(offsets[strings.size()], &data));
  for (int64_t i = 0; i < strings.size(); ++i) {
    std::copy_n(strings(i).data(), strings(i).size(), static_cast<char*>(data) + offsets[i]);
  }
  return OkStatus();
}

// Returns whether `splits` are ascending positions, beginning with 0, of `lists` lists, or of any number of lists.
bool AreSplits(const Tensor& splits, std::optional<int64_t> lists) {
  if (splits.dtype() != tensorflow::DT_INT64 || splits.dims() != 1 || splits.NumElements() < 1) return false;
  const auto positions = splits.vec<int64_t>();
  if (positions(0) != 0 || (lists && positions.size() != *lists + 1)) return false;
  return std::is_sorted(positions.data(), positions.data() + positions.size());
}

}  // namespace

tensorflow::DataType ToTensorFlow(columnar::ValueType type) { return kDtypes[static_cast<int>(type)]; }

std::optional<columnar::ValueType> ToValueType(tensorflow::DataType dtype) {
  for (size_t i = 0; i < kDtypes.size() && dtype != tensorflow::DT_INVALID; ++i) {
    if (kDtypes[i] == dtype) return static_cast<columnar::ValueType>(i);
  }
  return std::nullopt;
}

void AppendTensors(const columnar::Column& column, const columnar::ColumnType& type, std::vector<Tensor>* tensors) {
  // The number of innermost elements: B if nothing is ragged, else the last number of the last splits.
  const int64_t elements =
      column.splits.empty() ? column.rows : column.splits.back().as<int64_t>()[column.splits.back().bytes / 8 - 1];
  TensorShape shape({elements});
  for (int64_t dimension : type.shape) shape.AddDim(dimension);
  tensors->push_back(column.type == columnar::ValueType::kString
                         ? StringTensor(column, shape)
                         : NumberTensor(column.values, ToTensorFlow(column.type), shape));
  for (const Buffer& splits : column.splits) {
    tensors->push_back(NumberTensor(splits, tensorflow::DT_INT64, TensorShape({splits.bytes / 8})));
  }
}

Result<columnar::Column> ColumnFromTensors(const Tensor* tensors, int ragged_rank) {
  const Tensor& values = tensors[0];
  const std::optional<columnar::ValueType> type = ToValueType(values.dtype());
  if (!type) return InvalidArgument("a column cannot have dtype " + tensorflow::DataTypeString(values.dtype()));
  if (values.dims() < 1) return InvalidArgument("a scalar has no rows; batch the dataset first");
  columnar::Column column;
  column.type = *type;
  column.count = values.NumElements();
  column.width = 1;
  for (int d = 1; d < values.dims(); ++d) column.width *= values.dim_size(d);
  std::optional<int64_t> elements;  // of the level above
  for (int level = 0; level < ragged_rank; ++level) {
    const Tensor& splits = tensors[1 + level];
    if (!AreSplits(splits, elements)) {
      return InvalidArgument("row splits are not ascending positions from 0, one more than there are lists");
    }
    if (level == 0) column.rows = splits.NumElements() - 1;
    elements = splits.vec<int64_t>()(splits.NumElements() - 1);
    column.splits.push_back(BufferOf(splits));
  }
  if (ragged_rank == 0) {
    column.rows = values.dim_size(0);
  } else if (*elements != values.dim_size(0)) {
    return InvalidArgument("row splits end at " + std::to_string(*elements) + ", and there are " +
                           std::to_string(values.dim_size(0)) + " values");
  }
  if (*type == columnar::ValueType::kString) {
    LOCKSTEP_RETURN_IF_ERROR(FillStrings(values, &column));
  } else {
    column.values = BufferOf(values);
  }
  return column;
}

}  // namespace lockstep
