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

// Base of every kernel that communicates. A kernel says what to do in two steps, and this class does the rest:
//
//   Prepare   on TensorFlow's thread: checks this rank's arguments, allocates, packs. Never waits.
//   Exchange  what Prepare returned: runs on the context's lane, one at a time; may wait for the other ranks. It writes
//             or allocates the outputs.
//
// No thread of TensorFlow's waits for a peer: ComputeAsync posts to the lane and returns.
//
// What fails in Prepare is bad on this rank alone, perhaps; peers wait in the collective already. So it is declined:
// all ranks raise the error and stay usable. All checks of arguments belong into Prepare, therefore. An Exchange of
// several collectives that fails between two of them declines the next by itself.
//
// Cancellation (a failing step, session.close): the collective gets a second to end, because on a step that fails on
// all ranks alike the peers arrive and nothing is lost; then the communicator is aborted, and the peers see why.
//
// Kernels are shared by concurrent runs: Prepare keeps no state in the kernel. Inputs and outputs live until the
// Exchange has returned, so that it may hold their addresses. Collectives reach the lane in the order in which
// TensorFlow runs them: the pass in tf/graph makes it the same on all ranks.
//
//   class SumKernel : public CollectiveKernel {
//     Result<Exchange> Prepare(const Call& call) override {
//       const tf::Tensor& in = call.context->input(0);
//       tf::Tensor* out = nullptr;
//       LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(call.context->allocate_output(0, in.shape(), &out)));
//       return Exchange([=, this, n = in.NumElements(), from = Data(in)](Communicator& communicator) {
//         return communicator.AllReduce(collective_name(), ReduceOp::kSum, DType::kFloat32, n, from, Data(*out));
//       });
//     }
//   };
class CollectiveKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit CollectiveKernel(tensorflow::OpKernelConstruction* construction);
  // As above, where the collective has a name of its own.
  CollectiveKernel(tensorflow::OpKernelConstruction* construction, std::string collective_name);

  // Final: what all kernels have in common is here once. FAILED_PRECONDITION where the process has joined no job,
  // CANCELLED where the step was cancelled before the collective began.
  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) final;

 protected:
  // What runs on the lane. Is copied on the way: large state goes into a shared_ptr. Must not throw.
  using Exchange = std::function<Status(Communicator&)>;

  // Where a kernel runs: its inputs and outputs, and the engine, which lives until the exchange has ended as well.
  struct Call {
    tensorflow::OpKernelContext* context;  // valid until the exchange has ended
    Context& engine;
  };

  // An empty Exchange says that there is nothing to wait for: the outputs are there. Whether it is empty must be the
  // same on all ranks, or some would wait for a collective that others leave out. May be called on several threads at
  // once.
  virtual Result<Exchange> Prepare(const Call& call) = 0;

  // What the communicator calls this collective in errors and compares over the ranks: if it has none of its own, the
  // node's name without the numbers that TensorFlow appends to make it unique, since those may differ where only one
  // rank writes summaries.
  const std::string& collective_name() const { return collective_name_; }

 private:
  const std::string collective_name_;
};

// `name` without "_<digits>" at the end of its parts: "scope_2/dense_1/all_reduce" is "scope/dense/all_reduce".
std::string CanonicalName(std::string_view name);

// "[2,3]", or "[2,3] and 11 more (#9f3c...)" for a list: what is compared over ranks as part of a collective's name
// where shapes have to be the same.
std::string ShapeSignature(const tensorflow::OpInputList& tensors);

// The reduction that attribute reduce_op of an op (LOCKSTEP_REDUCE_OP_ATTR) names. Fails the construction for the mean
// of input 0's type where that is an integer: so on every rank, and before any collective begins.
ReduceOp ReduceOpOf(tensorflow::OpKernelConstruction* construction);

// Registers `Kernel` for op `name` on the CPU.
#define LOCKSTEP_COLLECTIVE_KERNEL(name, Kernel) \
  REGISTER_KERNEL_BUILDER(Name(name).Device(::tensorflow::DEVICE_CPU), Kernel)

}  // namespace lockstep
