// LockstepRunCheck: the first collective of every graph that has any. It carries the graph's list of collectives as
// text, in the order of the chain, and holds it against the other ranks' lists.
//
//   operations   "LockstepBroadcast 'init' {...}", "call 'step' of a function with ...", "loop of ..."
//   fingerprint  64 bits over all of them; also part of the node's name, as kernels are kept by name
//
// The first run of a graph exchanges the fingerprints, 8 bytes a rank. Only where they differ the lists follow, to say
// where (core/comm/job/run_agreement.h). What was agreed on is kept with the engine, and so ends with the job.
#include <string>
#include <utility>
#include <vector>

#include "tf/comm/collective_kernel.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// Stands before the first collective of a graph; tf/graph/order_pass.cc puts it there. Once the ranks have agreed, it
// costs a look into a set: no exchange, and no way to the lane. That ranks agree on whether there is something to
// exchange follows from RunAgreement: what one holds for agreed, all do.
//
// Without it, ranks with different graphs would meet in collectives that don't match, in the middle of a step, and be
// told of two single operations. Here they are told before the first of them, by where their lists begin to differ.
class RunCheckKernel : public CollectiveKernel {
 public:
  explicit RunCheckKernel(tf::OpKernelConstruction* construction) : CollectiveKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("operations", &operations_));
    fingerprint_ = RunAgreement::Fingerprint(operations_);
  }

 protected:
  Result<Exchange> Prepare(const Call& call) override {
    RunAgreement& agreement = call.engine.run_agreement();
    if (agreement.Holds(fingerprint_)) return Exchange();
    return Exchange(
        [this, &agreement](Communicator& communicator) { return agreement.Reach(communicator, operations_); });
  }

 private:
  std::vector<std::string> operations_;
  uint64_t fingerprint_ = 0;
};

LOCKSTEP_COLLECTIVE_KERNEL("LockstepRunCheck", RunCheckKernel);

// Not a LOCKSTEP_COLLECTIVE_OP: the pass does not order what it puts in itself.
REGISTER_OP("LockstepRunCheck")
    .Attr("operations: list(string)")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(R"doc(
Fails on every rank where the ranks run different collectives. Of use to the graph pass alone, which adds it.

operations: the collectives of the graph, in order, as text.
)doc");

}  // namespace
}  // namespace lockstep
