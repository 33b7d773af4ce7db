// Status codes are classified here, once for all ops, because a MonitoredSession reacts to the code of an error. It
// starts over at UNAVAILABLE and ABORTED, ends normally at OUT_OF_RANGE, and raises all others.
#include "tf/bridge/convert.h"

#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/allocation_description.pb.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// TensorFlow's buffer over a part of a SharedBuffer. TensorFlow counts its references. Its destructor releases the
// part; the memory is free again when no other tensor shows any of it.
class SharedTensorBuffer : public tf::TensorBuffer {
 public:
  SharedTensorBuffer(std::shared_ptr<SharedBuffer> memory, int64_t offset_bytes, size_t bytes)
      : TensorBuffer(static_cast<char*>(memory->data()) + offset_bytes), memory_(std::move(memory)), bytes_(bytes) {}

  size_t size() const override { return bytes_; }
  tf::TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tf::AllocationDescription* proto) const override {
    proto->set_requested_bytes(static_cast<int64_t>(bytes_));
    proto->set_allocator_name("lockstep_shared");
  }
  // Kernels forward an input's buffer to an output, and variables update theirs in place, only if it is owned
  // (Tensor::RefCountIsOne). This buffer must not be owned: other tensors show other parts of the same memory, and
  // peers may still read it.
  bool OwnsMemory() const override { return false; }

 private:
  const std::shared_ptr<SharedBuffer> memory_;
  const size_t bytes_;
};

}  // namespace

// It has no default case, so that the compiler reports a new code of the core that is missing here.
absl::Status ToTensorFlow(const Status& status) {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  switch (status.code()) {
    case StatusCode::kOk: return absl::OkStatus();
    case StatusCode::kCancelled: code = absl::StatusCode::kCancelled; break;
    case StatusCode::kInvalidArgument: code = absl::StatusCode::kInvalidArgument; break;
    case StatusCode::kDeadlineExceeded: code = absl::StatusCode::kDeadlineExceeded; break;
    case StatusCode::kNotFound: code = absl::StatusCode::kNotFound; break;
    case StatusCode::kResourceExhausted: code = absl::StatusCode::kResourceExhausted; break;
    case StatusCode::kFailedPrecondition: code = absl::StatusCode::kFailedPrecondition; break;
    case StatusCode::kOutOfRange: code = absl::StatusCode::kOutOfRange; break;
    case StatusCode::kUnimplemented: code = absl::StatusCode::kUnimplemented; break;
    // TensorFlow's sessions take UNAVAILABLE and ABORTED for a preempted server that will come back, and start over,
    // for ever. A lost rank does not come back into a running job. INTERNAL is what remains: sessions raise it, and the
    // other codes that they raise have meanings of their own in the core (status.h). It is shared with bugs and failed
    // system calls; the message distinguishes them.
    case StatusCode::kUnavailable:
    case StatusCode::kAborted:
    case StatusCode::kInternal: code = absl::StatusCode::kInternal; break;
    case StatusCode::kDataLoss: code = absl::StatusCode::kDataLoss; break;
  }
  return absl::Status(code, status.message());
}

// Most of these errors come from calls that allocate or build graphs. The default case covers TensorFlow's other codes,
// which have no meaning for the core.
Status FromTensorFlow(const absl::Status& status) {
  const std::string message(status.message());
  switch (status.code()) {
    case absl::StatusCode::kOk: return OkStatus();
    case absl::StatusCode::kCancelled: return Cancelled(message);
    case absl::StatusCode::kInvalidArgument: return InvalidArgument(message);
    case absl::StatusCode::kDeadlineExceeded: return DeadlineExceeded(message);
    case absl::StatusCode::kNotFound: return NotFound(message);
    case absl::StatusCode::kResourceExhausted: return ResourceExhausted(message);
    case absl::StatusCode::kFailedPrecondition: return FailedPrecondition(message);
    case absl::StatusCode::kAborted: return Aborted(message);
    case absl::StatusCode::kOutOfRange: return OutOfRange(message);
    case absl::StatusCode::kUnimplemented: return Unimplemented(message);
    case absl::StatusCode::kUnavailable: return Unavailable(message);
    case absl::StatusCode::kDataLoss: return DataLoss(message);
    default: return Internal(message);
  }
}

// The one list of types for computation. LOCKSTEP_DTYPES repeats it, because op definitions are text.
Result<DType> ToDType(tf::DataType dtype) {
  switch (dtype) {
    case tf::DT_FLOAT: return DType::kFloat32;
    case tf::DT_DOUBLE: return DType::kFloat64;
    case tf::DT_HALF: return DType::kFloat16;
    case tf::DT_BFLOAT16: return DType::kBFloat16;
    case tf::DT_INT8: return DType::kInt8;
    case tf::DT_INT16: return DType::kInt16;
    case tf::DT_INT32: return DType::kInt32;
    case tf::DT_INT64: return DType::kInt64;
    case tf::DT_UINT8: return DType::kUInt8;
    case tf::DT_UINT16: return DType::kUInt16;
    case tf::DT_UINT32: return DType::kUInt32;
    case tf::DT_UINT64: return DType::kUInt64;
    case tf::DT_BOOL: return DType::kBool;
    default:
      return InvalidArgument(absl::StrCat("type ", tf::DataTypeString(dtype), " is not one of " LOCKSTEP_DTYPES));
  }
}

tf::Tensor ViewOf(const std::shared_ptr<SharedBuffer>& memory, int64_t offset_bytes, tf::DataType dtype,
                  const tf::TensorShape& shape) {
  const size_t bytes = static_cast<size_t>(shape.num_elements()) * tf::DataTypeSize(dtype);
  // Created with one reference, which this pointer releases at the end.
  tf::core::RefCountPtr<tf::TensorBuffer> buffer(new SharedTensorBuffer(memory, offset_bytes, bytes));
  return tf::Tensor(dtype, shape, buffer.get());  // takes a reference of its own
}

// When the communicator calls it, all ranks are in the exchange. So an error then concerns only this rank, and the
// others continue.
Allocate AllocateOutput(tf::OpKernelContext* context, int index, const tf::TensorShape& row_shape) {
  return [context, index, row_shape](std::span<const int64_t> counts) -> Result<void*> {
    tf::TensorShape shape = row_shape;
    const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    absl::Status status = shape.InsertDimWithStatus(0, rows);
    tf::Tensor* output = nullptr;
    if (status.ok()) status = context->allocate_output(index, shape, &output);
    if (!status.ok()) return FromTensorFlow(status);
    return Data(*output);
  };
}

Result<tf::Tensor*> AllocateTensor(tf::OpKernelContext* context, int index, const tf::TensorShape& shape) {
  tf::Tensor* output = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_output(index, shape, &output)));
  return output;
}

void* Data(const tf::Tensor& tensor) {
  // tensor_data() is const because most callers only read; the memory is not const.
  return tensor.NumElements() == 0 ? nullptr : const_cast<char*>(tensor.tensor_data().data());
}

}  // namespace lockstep
