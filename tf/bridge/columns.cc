// Columns become tensors. A tensor's memory has to begin on a border that a decoded piece has only at its front, and at
// places that happen to lie right; so whether a column is shared or copied is decided for each tensor anew. Both give
// the same values, and nothing but time and memory depends on it.
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

// In the order of columnar::ValueType, which indexes it.
constexpr std::array<tensorflow::DataType, 13> kDtypes = {
    tensorflow::DT_BOOL,  tensorflow::DT_INT8,   tensorflow::DT_INT16,  tensorflow::DT_INT32,  tensorflow::DT_INT64,
    tensorflow::DT_UINT8, tensorflow::DT_UINT16, tensorflow::DT_UINT32, tensorflow::DT_UINT64, tensorflow::DT_HALF,
    tensorflow::DT_FLOAT, tensorflow::DT_DOUBLE, tensorflow::DT_STRING,
};

// A tensor that shares less than this would keep a whole decoded piece alive for the sake of a copy that costs nothing.
// Small batches are also what shuffle buffers hold by the thousand, maybe each of another piece.
constexpr int64_t kLeastSharedBytes = 16 << 10;

// Memory of a column as the buffer of a tensor. It doesn't own the memory in TensorFlow's sense, so that no operation
// writes its result in place over values that other tensors see: two batches are often cut out of one piece.
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

// Numbers and row splits. Kernels assume aligned memory and would crash on another; slices of a piece begin anywhere,
// so that this is looked at for every tensor.
Tensor NumberTensor(const Buffer& buffer, tensorflow::DataType dtype, const TensorShape& shape) {
  const bool aligned = reinterpret_cast<uintptr_t>(buffer.data) % tensorflow::Allocator::kAllocatorAlignment == 0;
  if (aligned && buffer.bytes >= kLeastSharedBytes) {
    return Tensor(dtype, shape, tensorflow::core::RefCountPtr<tensorflow::TensorBuffer>(new ColumnBuffer(buffer)));
  }
  Tensor tensor(dtype, shape);
  if (buffer.bytes > 0) std::memcpy(tensor.data(), buffer.data, buffer.bytes);
  return tensor;
}

// TensorFlow keeps each string in an object of its own: short ones inside of it, longer ones on the heap.
Tensor StringTensor(const columnar::Column& column, const TensorShape& shape) {
  Tensor tensor(tensorflow::DT_STRING, shape);
  auto* strings = static_cast<tensorflow::tstring*>(tensor.data());
  const auto* bytes = column.values.as<char>();
  const auto* offsets = column.offsets.as<int64_t>();
  for (int64_t i = 0; i < column.count; ++i) strings[i].assign(bytes + offsets[i], offsets[i + 1] - offsets[i]);
  return tensor;
}

// Bytes of a tensor, which the buffer keeps alive.
Buffer BufferOf(const Tensor& tensor) {
  auto owner = std::make_shared<const Tensor>(tensor);
  const auto bytes = owner->tensor_data();
  return {bytes.data(), static_cast<int64_t>(bytes.size()), owner};
}

// The bytes of all strings one after the other, and where each begins.
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

// Whether `splits` are positions, beginning with 0, of `lists` lists. -1: of any number.
bool AreSplits(const Tensor& splits, int64_t lists) {
  if (splits.dtype() != tensorflow::DT_INT64 || splits.dims() != 1 || splits.NumElements() < 1) return false;
  const auto positions = splits.vec<int64_t>();
  if (positions(0) != 0 || (lists >= 0 && positions.size() != lists + 1)) return false;
  return std::is_sorted(positions.data(), positions.data() + positions.size());
}

}  // namespace

tensorflow::DataType ToTensorFlow(columnar::ValueType type) { return kDtypes[static_cast<int>(type)]; }

std::optional<columnar::ValueType> ToValueType(tensorflow::DataType dtype) {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i] == dtype) return static_cast<columnar::ValueType>(i);
  }
  return std::nullopt;
}

void AppendTensors(const columnar::Column& column, const columnar::ColumnType& type, std::vector<Tensor>* tensors) {
  // Innermost elements: B of them where nothing is ragged, else as many as the last splits say.
  TensorShape shape({column.count / column.width});
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
  int64_t elements = -1;
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
  } else if (elements != values.dim_size(0)) {
    return InvalidArgument("row splits end at " + std::to_string(elements) + ", and there are " +
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
