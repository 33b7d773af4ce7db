// Columns become tensors. A tensor's memory has to begin on a border that a decoded piece has only at its front, and at
// places that happen to lie right; so whether a column is shared or copied is decided for each tensor anew. Both give
// the same values, and nothing but time and memory depends on it.
#include "tf/bridge/columns.h"

#include <array>
#include <cstdint>
#include <cstring>
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
class SharedBuffer : public tensorflow::TensorBuffer {
 public:
  explicit SharedBuffer(Buffer buffer) : TensorBuffer(const_cast<void*>(buffer.data)), buffer_(std::move(buffer)) {}

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
    return Tensor(dtype, shape, tensorflow::core::RefCountPtr<tensorflow::TensorBuffer>(new SharedBuffer(buffer)));
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

}  // namespace lockstep
