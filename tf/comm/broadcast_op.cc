// Broadcast of a list of tensors of any types, as one buffer of bytes. Mostly used where a program starts, once for all
// replicated variables: so one exchange matters more than the copy that packing costs at either end.
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tf/comm/collective_kernel.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// One buffer for all tensors: the root packs it, everyone unpacks it. The root's outputs are copies as well, so that no
// output shares an input's memory on one rank alone. The shapes are part of the collective's name, so that ranks whose
// variables differ get an error and not each other's bytes.
class BroadcastKernel : public CollectiveKernel {
 public:
  explicit BroadcastKernel(tf::OpKernelConstruction* construction) : CollectiveKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("root", &root_));
  }

 protected:
  // The other ranks allocate as much as their own inputs have.
  // INVALID_ARGUMENT, on all ranks, for a root that is no rank of the job: the size of a job is not known when the
  // graph is built.
  Result<Exchange> Prepare(const Call& call) override {
    tf::OpKernelContext* const context = call.context;
    Communicator& communicator = call.engine.communicator();
    if (root_ < 0 || root_ >= communicator.size()) {
      return InvalidArgument(
          absl::StrCat("broadcast '", name(), "': root ", root_, " is no rank of a job of ", communicator.size()));
    }
    tf::OpInputList inputs;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->input_list("tensors", &inputs)));
    int64_t bytes = 0;
    for (const tf::Tensor& input : inputs) bytes += static_cast<int64_t>(input.TotalBytes());

    tf::Tensor packed;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_temp(tf::DT_UINT8, tf::TensorShape({bytes}), &packed)));
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
  // Returns where the copy in `to` ends.
  static char* Copy(char* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return to + bytes;
  }

  // Outputs have the inputs' shapes and lie in the buffer one behind the other, without gaps; they are copied out of
  // it, so that alignment doesn't matter.
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

tensors: of any types, of the same shapes on all ranks; only those of `root` count.
values: what `root` gave.
)doc");

}  // namespace
}  // namespace lockstep
