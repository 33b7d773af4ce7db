// The ordered collectives of tensors in the memory of GPUs. The operations are defined beside their kernels of the CPU
// (all_reduce_op.cc, broadcast_op.cc, row_ops.cc). Names, results and errors are the same.
// ```
//   operation       before, in TensorFlow's stream      after, in TensorFlow's stream
//   allreduce       several tensors: packed by a kernel nothing: results are views of the bucket
//   broadcast       the root's tensors: packed          unpacked
//   the others      nothing                             nothing
// ```
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tf/comm/collective_kernel.h"
#include "tf/comm/device_kernel.h"
#include "tf/comm/rows.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// The alignment of tensors in a bucket. TensorFlow's allocator for GPUs has the same alignment.
constexpr int64_t kAlignBytes = 256;

// Tensors one after another in a tensor of bytes of the device's memory; gaps hold zeros.
struct Bucket {
  tf::Tensor memory;
  std::vector<int64_t> offsets;  // of each tensor, in bytes

  char* at(int i) const { return static_cast<char*>(Data(memory)) + offsets[i]; }
  int64_t bytes() const { return memory.NumElements(); }
};

Result<Bucket> AllocateBucket(tf::OpKernelContext* context, const tf::OpInputList& inputs) {
  Bucket bucket;
  int64_t bytes = 0;
  for (const tf::Tensor& input : inputs) {
    bucket.offsets.push_back(bytes);
    bytes += (static_cast<int64_t>(input.TotalBytes()) + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(bucket.memory, AllocateOnDevice(context, tf::DT_UINT8, tf::TensorShape({bytes})));
  return bucket;
}

Status CopyPieces(const DevicePlace& place, const std::vector<device::Piece>& pieces) {
  return ToStatus(place, place.library->copy_pieces(place.stream, pieces.data(), static_cast<int64_t>(pieces.size())),
                  "copy_pieces");
}

// Puts copies of the inputs into the bucket, or of the bucket into `outputs`, into TensorFlow's stream.
Status Pack(const DevicePlace& place, const tf::OpInputList& inputs, const Bucket& bucket) {
  std::vector<device::Piece> pieces;
  for (int i = 0; i < inputs.size(); ++i) {
    const int64_t end = i + 1 < inputs.size() ? bucket.offsets[i + 1] : bucket.bytes();
    pieces.push_back(
        {Data(inputs[i]), bucket.at(i), static_cast<int64_t>(inputs[i].TotalBytes()), end - bucket.offsets[i]});
  }
  return CopyPieces(place, pieces);
}

Status Unpack(const DevicePlace& place, const Bucket& bucket, const std::vector<tf::Tensor*>& outputs) {
  std::vector<device::Piece> pieces;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto bytes = static_cast<int64_t>(outputs[i]->TotalBytes());
    pieces.push_back({bucket.at(static_cast<int>(i)), Data(*outputs[i]), bytes, bytes});
  }
  return CopyPieces(place, pieces);
}

// Returns a tensor that shows a part of the bucket, and keeps the whole bucket.
Result<tf::Tensor> ViewOf(const Bucket& bucket, int i, const tf::Tensor& like) {
  const tf::Tensor part =
      bucket.memory.Slice(bucket.offsets[i], bucket.offsets[i] + static_cast<int64_t>(like.TotalBytes()));
  tf::Tensor view;
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(view.BitcastFrom(part, like.dtype(), like.shape())));
  return view;
}

class AllReduceOnDevice : public DeviceKernel {
 public:
  explicit AllReduceOnDevice(tf::OpKernelConstruction* construction)
      : DeviceKernel(construction), reduce_op_(ReduceOpOf(construction)) {}

 protected:
  Result<Collective> Prepare(const DeviceCall& call) override {
    tf::OpInputList inputs;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(call.context->input_list("tensors", &inputs)));
    LOCKSTEP_ASSIGN_OR_RETURN(const DType dtype, ToDType(inputs[0].dtype()));
    const std::string name = NameOnDevices(absl::StrCat(collective_name(), " ", ShapeSignature(inputs)));
    if (inputs.size() == 1) {
      tf::Tensor* output = nullptr;
      LOCKSTEP_RETURN_IF_ERROR(
          FromTensorFlow(call.context->forward_input_or_allocate_output({0}, 0, inputs[0].shape(), &output)));
      return Reduce(call, name, dtype, inputs[0].NumElements(), Data(inputs[0]), Data(*output));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const Bucket bucket, AllocateBucket(call.context, inputs));
    LOCKSTEP_RETURN_IF_ERROR(Pack(call.place, inputs, bucket));
    for (int i = 0; i < inputs.size(); ++i) {
      LOCKSTEP_ASSIGN_OR_RETURN(const tf::Tensor view, ViewOf(bucket, i, inputs[i]));
      call.context->set_output(i, view);
    }
    return Reduce(call, name, dtype, bucket.bytes() / DTypeSize(dtype), bucket.at(0), bucket.at(0));
  }

 private:
  // The outputs keep the memory.
  Collective Reduce(const DeviceCall& call, const std::string& name, DType dtype, int64_t count, const void* in,
                    void* out) const {
    return {.enqueue = [=, this, stream = call.place.stream](device::DeviceCommunicator& devices) {
      return devices.AllReduce(name, reduce_op_, dtype, count, in, out, stream);
    }};
  }

  const ReduceOp reduce_op_;
};

// The outputs are copies on all ranks: programs assign them to variables, which would keep the whole bucket.
class BroadcastOnDevice : public DeviceKernel {
 public:
  explicit BroadcastOnDevice(tf::OpKernelConstruction* construction) : DeviceKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("root", &root_));
  }

 protected:
  Result<Collective> Prepare(const DeviceCall& call) override {
    LOCKSTEP_RETURN_IF_ERROR(CheckRoot(root_, name(), call.engine.communicator()));
    tf::OpInputList inputs;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(call.context->input_list("tensors", &inputs)));
    LOCKSTEP_ASSIGN_OR_RETURN(const Bucket bucket, AllocateBucket(call.context, inputs));
    if (call.engine.communicator().rank() == root_) LOCKSTEP_RETURN_IF_ERROR(Pack(call.place, inputs, bucket));
    std::vector<tf::Tensor*> outputs;
    for (int i = 0; i < inputs.size(); ++i) {
      LOCKSTEP_ASSIGN_OR_RETURN(outputs.emplace_back(), AllocateTensor(call.context, i, inputs[i].shape()));
    }
    const std::string name = NameOnDevices(absl::StrCat(collective_name(), " ", ShapeSignature(inputs)));
    return Collective{.enqueue =
                          [=, this, stream = call.place.stream](device::DeviceCommunicator& devices) {
                            return devices.Broadcast(name, root_, bucket.bytes(), Data(bucket.memory), stream);
                          },
                      .finish = [=, place = call.place] { return Unpack(place, bucket, outputs); }};
  }

 private:
  int root_ = 0;
};

// Makes output 0, the rows of all ranks, and output 1, their numbers. Without memory for the rows this rank takes part
// without receiving, and `error` has the reason.
Result<void*> AllocateRows(tf::OpKernelContext* context, const tf::TensorShape& row, const std::vector<int64_t>& counts,
                           Status* error) {
  LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor* const numbers,
                            AllocateTensor(context, 1, tf::TensorShape({static_cast<int64_t>(counts.size())})));
  std::copy(counts.begin(), counts.end(), numbers->flat<int64_t>().data());
  tf::TensorShape shape = row;
  shape.InsertDim(0, std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  const Result<tf::Tensor*> rows = AllocateTensor(context, 0, shape);
  if (rows.ok()) return Data(**rows);
  *error = rows.status();
  return nullptr;
}

class AllGatherOnDevice : public DeviceKernel {
 public:
  using DeviceKernel::DeviceKernel;

 protected:
  Result<Collective> Prepare(const DeviceCall& call) override {
    LOCKSTEP_ASSIGN_OR_RETURN(const Rows rows, AsRows(call.context->input(0), "allgather", collective_name(), name()));
    const auto error = std::make_shared<Status>();
    return Collective{
        .enqueue = [=, context = call.context, stream = call.place.stream,
                    name = NameOnDevices(rows.name)](device::DeviceCommunicator& devices) -> Result<device::Ticket> {
          LOCKSTEP_ASSIGN_OR_RETURN(const auto counts, devices.GatherCounts(name, rows.item, rows.count));
          LOCKSTEP_ASSIGN_OR_RETURN(void* const out, AllocateRows(context, rows.row, counts, error.get()));
          return devices.AllGatherV(name, rows.item, counts, rows.data, out, stream);
        },
        .finish = [error] { return *error; }};
  }
};

class AllToAllOnDevice : public DeviceKernel {
 public:
  using DeviceKernel::DeviceKernel;

 protected:
  Result<Collective> Prepare(const DeviceCall& call) override {
    LOCKSTEP_ASSIGN_OR_RETURN(const Rows rows, AsRows(call.context->input(0), "alltoall", collective_name(), name()));
    LOCKSTEP_ASSIGN_OR_RETURN(const auto splits,
                              RowCounts(call.context->input(1), call.engine.communicator().size(), rows.count,
                                        absl::StrCat("alltoall '", name(), "': splits")));
    const auto error = std::make_shared<Status>();
    return Collective{
        .enqueue = [=, context = call.context, stream = call.place.stream,
                    name = NameOnDevices(rows.name)](device::DeviceCommunicator& devices) -> Result<device::Ticket> {
          LOCKSTEP_ASSIGN_OR_RETURN(const auto received, devices.ExchangeCounts(name, rows.item, splits));
          LOCKSTEP_ASSIGN_OR_RETURN(void* const out, AllocateRows(context, rows.row, received, error.get()));
          return devices.AllToAllV(name, rows.item, splits, received, rows.data, out, stream);
        },
        .finish = [error] { return *error; }};
  }
};

class ReduceScatterOnDevice : public DeviceKernel {
 public:
  explicit ReduceScatterOnDevice(tf::OpKernelConstruction* construction)
      : DeviceKernel(construction), reduce_op_(ReduceOpOf(construction)) {}

 protected:
  Result<Collective> Prepare(const DeviceCall& call) override {
    LOCKSTEP_ASSIGN_OR_RETURN(const Rows rows,
                              AsRows(call.context->input(0), "reducescatter", collective_name(), name()));
    const Communicator& communicator = call.engine.communicator();
    LOCKSTEP_ASSIGN_OR_RETURN(auto counts, RowCounts(call.context->input(1), communicator.size(), rows.count,
                                                     absl::StrCat("reducescatter '", name(), "': counts")));
    LOCKSTEP_ASSIGN_OR_RETURN(void* const out,
                              AllocateOutput(call.context, 0, rows.row)(std::span(&counts[communicator.rank()], 1)));
    for (int64_t& count : counts) count *= rows.item.width;
    return Collective{.enqueue = [=, this, stream = call.place.stream,
                                  name = NameOnDevices(rows.name)](device::DeviceCommunicator& devices) {
      return devices.ReduceScatter(name, reduce_op_, rows.item.dtype, counts, rows.data, out, stream);
    }};
  }

 private:
  const ReduceOp reduce_op_;
};

LOCKSTEP_DEVICE_KERNEL("LockstepAllReduce", AllReduceOnDevice);
LOCKSTEP_DEVICE_KERNEL("LockstepBroadcast", BroadcastOnDevice);
LOCKSTEP_DEVICE_KERNEL("LockstepAllGather", AllGatherOnDevice, "counts");
LOCKSTEP_DEVICE_KERNEL("LockstepAllToAll", AllToAllOnDevice, "splits", "received_splits");
LOCKSTEP_DEVICE_KERNEL("LockstepReduceScatter", ReduceScatterOnDevice, "counts");

}  // namespace
}  // namespace lockstep
