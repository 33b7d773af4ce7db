#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/job/context.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/bridge/convert.h"
#include "tf/comm/collective_op.h"

namespace lockstep {

// Base of every kernel that communicates on the context's lane: of CollectiveKernel below, and of the kernels for GPUs
// (device_kernel.h). No thread of TensorFlow waits for a peer: ComputeAsync posts to the lane and returns.
//
// Cancellation (a failing step, session.close): the collective gets one second to end. If the step fails on all ranks
// alike, the peers arrive in this time and nothing is lost. Then the lane's job is aborted, and the peers get the
// reason.
//
// Concurrent runs share kernels, so a kernel keeps no state of a call. Collectives reach the lane in the order in which
// TensorFlow runs them; the pass in tf/graph makes this order the same on all ranks.
class LaneKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit LaneKernel(tensorflow::OpKernelConstruction* construction);

  // Final, so that the common part exists once. FAILED_PRECONDITION if the process has joined no job, CANCELLED if the
  // step was cancelled before the collective began.
  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) final;

 protected:
  // The arguments of a kernel's call: its inputs and outputs, and the engine, which also lives until the work has
  // ended.
  struct Call {
    tensorflow::OpKernelContext* context;  // valid until the work has ended
    Context& engine;
  };
  // Ends a call, once, on any thread: now or later.
  using End = std::function<void(const Status&)>;
  // The work that runs on the lane. It is copied on the way, so keep large state in a shared_ptr. It must not throw.
  using Work = std::function<void(LaneJob& job, End end)>;

  // Returns the work of a call, on TensorFlow's thread; empty if there is nothing to wait for. It must be empty on all
  // ranks or on none, or some ranks would wait for a collective that others leave out. Several threads may call it at
  // once.
  virtual Work WorkOf(const Call& call) = 0;

  // Returns the collective's name in errors and in the comparison between ranks. This is the
  // name of an eager call (LOCKSTEP_NAME_ATTR), or the node's name without the numbers that TensorFlow appends to make
  // it unique. These may differ if only one rank writes summaries.
  const std::string& collective_name() const { return collective_name_; }

 private:
  const std::string collective_name_;
};

// Base of the kernels whose tensors are in the host's memory. A kernel implements two steps, and this class does the
// rest:
//
//   Prepare   on TensorFlow's thread: checks this rank's arguments, allocates, packs. Never waits.
//   Exchange  what Prepare returned: runs on the context's lane, one at a time; may wait for the other ranks. It writes
//             or allocates the outputs.
//
// An error in Prepare may concern only this rank, while peers already wait in the collective. So it is declined: all
// ranks raise the error and stay usable. Therefore all checks of arguments belong into Prepare. An Exchange of several
// collectives that fails between two of them declines the next one itself.
//
// Inputs and outputs live until the Exchange has returned, so it may hold their addresses.
// ```cpp
// class SumKernel : public CollectiveKernel {
//   Result<Exchange> Prepare(const Call& call) override {
//     const tf::Tensor& in = call.context->input(0);
//     tf::Tensor* out = nullptr;
//     LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(call.context->allocate_output(0, in.shape(), &out)));
//     return Exchange([=, this, n = in.NumElements(), from = Data(in)](Communicator& communicator) {
//       return communicator.AllReduce(collective_name(), ReduceOp::kSum, DType::kFloat32, n, from, Data(*out));
//     });
//   }
// };
// ```
class CollectiveKernel : public LaneKernel {
 public:
  using LaneKernel::LaneKernel;

 protected:
  using Exchange = std::function<Status(Communicator&)>;

  // Checks, allocates and packs. An empty Exchange means that there is nothing to wait for: the outputs are ready.
  virtual Result<Exchange> Prepare(const Call& call) = 0;

 private:
  Work WorkOf(const Call& call) final;
};

// Returns `name` without "_<digits>" at the end of its parts: "scope_2/dense_1/all_reduce" is "scope/dense/all_reduce".
std::string CanonicalName(std::string_view name);

// Returns "[2,3]", or "[2,3] and 11 more (#9f3c...)" for a list. If shapes have to be equal, it is part of the name
// that ranks compare.
std::string ShapeSignature(const tensorflow::OpInputList& tensors);

// Returns the reduction that the op's attribute reduce_op (LOCKSTEP_REDUCE_OP_ATTR) names. Fails the construction for
// the mean of an integer input 0: so it fails on every rank, before any collective begins.
ReduceOp ReduceOpOf(tensorflow::OpKernelConstruction* construction);

// INVALID_ARGUMENT, on all ranks, for a root that is not a rank of the job. Its size is not known when the graph is
// built.
Status CheckRoot(int root, std::string_view node, const Communicator& communicator);

// Registers `Kernel` for op `name` on the CPU.
#define LOCKSTEP_COLLECTIVE_KERNEL(name, Kernel) \
  REGISTER_KERNEL_BUILDER(Name(name).Device(::tensorflow::DEVICE_CPU), Kernel)

}  // namespace lockstep
