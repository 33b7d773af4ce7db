// Broadcast of a list of tensors of any types, as one buffer of bytes. Programs mostly use it once at their start, for
// all replicated variables. So one exchange matters more than the copy for packing at either end.
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tf/bridge/host_memory.h"
#include "tf/comm/collective_kernel.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// One buffer for all tensors: the root packs it, every rank unpacks it. The root's outputs are copies as well, so that
// no rank has outputs that share an input's memory. The shapes are part of the collective's name: ranks whose variables
// differ get an error instead of each other's bytes.
class BroadcastKernel : public CollectiveKernel {
 public:
  explicit BroadcastKernel(tf::OpKernelConstruction* construction) : CollectiveKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("root", &root_));
  }

 protected:
  // The other ranks allocate as much memory as their own inputs have.
  Result<Exchange> Prepare(const Call& call) override {
    tf::OpKernelContext* const context = call.context;
    Communicator& communicator = call.engine.communicator();
    LOCKSTEP_RETURN_IF_ERROR(CheckRoot(root_, name(), communicator));
    tf::OpInputList inputs;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->input_list("tensors", &inputs)));
    int64_t bytes = 0;
    for (const tf::Tensor& input : inputs) bytes += static_cast<int64_t>(input.TotalBytes());

    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor packed, AllocateTemporary(context, tf::DT_UINT8, tf::TensorShape({bytes})));
    if (communicator.rank() == root_) {
      char* to = static_cast<char*>(Data(packed));
      for (const tf::Tensor& input : inputs) to = Copy(to, Data(input), input.TotalBytes());
    }
    return Exchange([this, context, packed = std::move(packed),
                     name = absl::StrCat(collective_name(), " ", ShapeSignature(inputs))](Communicator& communicator) {
      LOCKSTEP_RETURN_IF_ERROR(communicator.Broadcast(name, root_, packed.NumElements(), Data(packed)));
      return Unpack(context, packed);
    });
  }

 private:
  // Returns the end of the copy in `to`.
  static char* Copy(char* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return to + bytes;
  }

  // Outputs have the inputs' shapes and lie in the buffer without gaps. They are copied out of it, so alignment does
  // not matter.
  static Status Unpack(tf::OpKernelContext* context, const tf::Tensor& packed) {
    const char* from = static_cast<const char*>(Data(packed));
    for (int i = 0; i < context->num_outputs(); ++i) {
      tf::Tensor* output = nullptr;
      LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_output(i, context->input(i).shape(), &output)));
      Copy(static_cast<char*>(Data(*output)), from, output->TotalBytes());
      from += output->TotalBytes();
    }
    return OkStatus();
  }

  int root_ = 0;
};

LOCKSTEP_COLLECTIVE_KERNEL("LockstepBroadcast", BroadcastKernel);

LOCKSTEP_COLLECTIVE_OP("LockstepBroadcast")
    .Input("tensors: T")
    .Output("values: T")
    .Attr(
        "T: list({float, double, half, bfloat16, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool, "
        "complex64, complex128}) >= 1")
    .Attr("root: int = 0")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      for (int i = 0; i < c->num_inputs(); ++i) c->set_output(i, c->input(i));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Gives every rank the tensors of `root`, in one exchange.

tensors: any types, the same shapes on all ranks; only the values of `root` are used.
values: the tensors of `root`.
)doc");

}  // namespace
}  // namespace lockstep
