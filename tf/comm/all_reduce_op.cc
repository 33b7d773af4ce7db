// Allreduce of a bucket: a list of tensors of one type that is exchanged as one.
//
// The tensors are packed into memory that all ranks of the host share, each at an aligned address, reduced there, and
// returned as views. So each byte is copied once. Views keep the whole bucket's memory: a long-lived value (one that is
// assigned to a variable) would reduce the memory for later exchanges. Three rules limit that:
// - outputs below kViewBytes are copied out, so a scalar never keeps a bucket;
//   - views hold at most half of this rank's shared memory; beyond that, outputs are copied out;
// - if shared memory is used up nevertheless, the bucket is packed into private memory.
//
// A single tensor is not packed if no peer could read it in place (it is small, or each rank is on its own host). It is
// reduced directly into the output. The output's memory is the input's if no other code needs that, or a view of memory
// whose pages are already mapped.
// ```
// bucket    | tensor 0 ........ 0 | tensor 1 ... 0 | tensor 2 .............. 0 |      each begins at kAlignment;
//           ^ offsets[0]          ^ offsets[1]     ^ offsets[2]                       the gaps hold zeros
// ```
// The cost for N bytes: they are read and written once to pack, reduced in place by all ranks together
// (docs/algorithms.md), and not touched again for views. All ranks make the same calls of the communicator, even if one
// has to use private memory; this does not affect results.
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tf/bridge/host_memory.h"
#include "tf/comm/collective_kernel.h"
#include "tf/comm/views.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// Buckets up to this size are exchanged from private memory: the communicator's own staging is as fast. It is the size
// of the staging slots, within which an exchange needs a single wait.
constexpr int64_t kSmallBytes = 16 << 10;
// The alignment of every tensor, so that a view can be one.
constexpr int64_t kAlignment = EIGEN_MAX_ALIGN_BYTES;

// A tensor's own memory as a bucket, without shared memory. Peers cannot read it: the communicator recognizes that by
// its address and stages the exchange.
class PrivateBuffer : public SharedBuffer {
 public:
  explicit PrivateBuffer(tf::Tensor tensor) : tensor_(std::move(tensor)) {}
  void* data() override { return Data(tensor_); }
  int64_t bytes() const override { return static_cast<int64_t>(tensor_.TotalBytes()); }

 private:
  const tf::Tensor tensor_;
};

// Tensors packed one after another.
struct Bucket {
  std::shared_ptr<SharedBuffer> memory;
  std::vector<int64_t> offsets;  // of each tensor, in bytes
  int64_t bytes = 0;
  bool is_shared = false;

  char* at(int i) const { return static_cast<char*>(memory->data()) + offsets[i]; }
};

// T and the reduction are attributes. TensorFlow's thread packs a bucket while the former bucket is exchanged. Copies
// out are made on the lane, where they delay the next bucket; this is one more reason for views.
class AllReduceKernel : public CollectiveKernel {
 public:
  explicit AllReduceKernel(tf::OpKernelConstruction* construction)
      : CollectiveKernel(construction), reduce_op_(ReduceOpOf(construction)) {}

 protected:
  // The shapes are part of the name. Otherwise a bucket would be compared only by its number of elements, which may be
  // equal for buckets that are divided differently on two ranks.
  Result<Exchange> Prepare(const Call& call) override {
    tf::OpInputList inputs;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(call.context->input_list("tensors", &inputs)));
    LOCKSTEP_ASSIGN_OR_RETURN(const DType dtype, ToDType(inputs[0].dtype()));
    std::string name = absl::StrCat(collective_name(), " ", ShapeSignature(inputs));
    const int64_t view_limit = call.engine.options().shared_bytes_per_rank / 2;
    if (inputs.size() == 1 && (static_cast<int64_t>(inputs[0].TotalBytes()) <= kSmallBytes ||
                               !call.engine.communicator().peers_read_shared())) {
      return Direct(call, inputs[0], dtype, view_limit, std::move(name));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(Bucket bucket, BucketFor(call, inputs));
    for (int i = 0; i < inputs.size(); ++i) {
      const int64_t bytes = static_cast<int64_t>(inputs[i].TotalBytes());
      if (bytes == 0) continue;
      std::memcpy(bucket.at(i), Data(inputs[i]), bytes);
      // The gap up to the next tensor is reduced with the rest: it has to hold numbers.
      const int64_t end = i + 1 < inputs.size() ? bucket.offsets[i + 1] : bucket.bytes;
      std::memset(bucket.at(i) + bytes, 0, end - bucket.offsets[i] - bytes);
    }
    return Exchange([=, this, context = call.context, bucket = std::move(bucket),
                     name = std::move(name)](Communicator& communicator) {
      void* const data = bucket.memory->data();
      LOCKSTEP_RETURN_IF_ERROR(
          communicator.AllReduce(name, reduce_op_, dtype, bucket.bytes / DTypeSize(dtype), data, data));
      return Unpack(context, bucket, view_limit);
    });
  }

 private:
  // Most single tensors are scalars (metrics, a norm), for which packing would cost more than all the rest.
  Result<Exchange> Direct(const Call& call, const tf::Tensor& input, DType dtype, int64_t view_limit,
                          std::string name) const {
    LOCKSTEP_ASSIGN_OR_RETURN(void* const out, OutputFor(call, input, view_limit));
    return Exchange([this, dtype, count = input.NumElements(), in = Data(input), out,
                     name = std::move(name)](Communicator& communicator) {
      return communicator.AllReduce(name, reduce_op_, dtype, count, in, out);
    });
  }

  static Result<void*> OutputFor(const Call& call, const tf::Tensor& input, int64_t view_limit) {
    const auto bytes = static_cast<int64_t>(input.TotalBytes());
    tf::Tensor* output = nullptr;
    if (call.context->forward_input_to_output_with_shape(0, 0, input.shape(), &output)) return Data(*output);
    if (bytes > kSmallBytes) {
      const auto memory = ForViews(call.engine.communicator().AllocateShared(bytes), view_limit);
      if (memory != nullptr) {
        call.context->set_output(0, ViewOf(memory, 0, input.dtype(), input.shape()));
        return memory->data();
      }
    }
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(call.context->allocate_output(0, input.shape(), &output)));
    return Data(*output);
  }

  // A failed AllocateShared is not an error and is not remembered: the next step may have memory again.
  static Result<Bucket> BucketFor(const Call& call, const tf::OpInputList& inputs) {
    Bucket bucket;
    for (const tf::Tensor& input : inputs) {
      bucket.offsets.push_back(bucket.bytes);
      const int64_t bytes = static_cast<int64_t>(input.TotalBytes());
      bucket.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
    if (bucket.bytes > kSmallBytes) bucket.memory = call.engine.communicator().AllocateShared(bucket.bytes);
    bucket.is_shared = bucket.memory != nullptr;
    if (!bucket.is_shared) {
      LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor memory,
                                AllocateTemporary(call.context, tf::DT_UINT8, tf::TensorShape({bucket.bytes})));
      bucket.memory = std::make_shared<PrivateBuffer>(std::move(memory));
    }
    return bucket;
  }

  // Outputs have the inputs' shapes. One buffer serves all views of a bucket. If no output becomes a view, the buffer
  // is destroyed at the end of this function and does not count any more.
  static Status Unpack(tf::OpKernelContext* context, const Bucket& bucket, int64_t view_limit) {
    std::shared_ptr<SharedBuffer> viewed;
    if (bucket.is_shared) viewed = ForViews(bucket.memory, view_limit);
    for (int i = 0; i < context->num_outputs(); ++i) {
      const tf::Tensor& input = context->input(i);
      const int64_t bytes = static_cast<int64_t>(input.TotalBytes());
      if (viewed && bytes >= kViewBytes && reinterpret_cast<uintptr_t>(bucket.at(i)) % kAlignment == 0) {
        context->set_output(i, ViewOf(viewed, bucket.offsets[i], input.dtype(), input.shape()));
        continue;
      }
      tf::Tensor* output = nullptr;
      LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_output(i, input.shape(), &output)));
      if (bytes > 0) std::memcpy(Data(*output), bucket.at(i), bytes);
    }
    return OkStatus();
  }

  const ReduceOp reduce_op_;
};

// N tensors of one type are one op and so one exchange, which makes them a bucket.
LOCKSTEP_COLLECTIVE_KERNEL("LockstepAllReduce", AllReduceKernel);

LOCKSTEP_COLLECTIVE_OP("LockstepAllReduce")
    .Input("tensors: N * T")
    .Output("reduced: N * T")
    .Attr("N: int >= 1")
    .Attr("T: " LOCKSTEP_DTYPES)
    .Attr(LOCKSTEP_REDUCE_OP_ATTR)
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      for (int i = 0; i < c->num_inputs(); ++i) c->set_output(i, c->input(i));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Reduces tensors over all ranks, in one exchange.

tensors: their shapes are the same on all ranks.
reduced: the inputs' shapes; the same bits on all ranks, because sums are taken in rank order.
)doc");

}  // namespace
}  // namespace lockstep
