// LockstepRunCheck is the first collective of every graph that has any. It has the graph's list of collectives as text,
// in the order of the chain, and compares it with the other ranks' lists.
//
//   operations   "LockstepBroadcast 'init' {...}", "call 'step' of a function with ...", "loop of ..."
//   fingerprint  64 bits of all of them; also part of the node's name, because kernels are kept by name
//
// The first run of a graph exchanges the fingerprints, 8 bytes per rank. Only if they differ, the lists are exchanged
// to find the difference (core/comm/job/run_agreement.h). The engine keeps the agreement, which so ends with the job.
#include <string>
#include <utility>
#include <vector>

#include "tf/comm/collective_kernel.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// Runs before the first collective of a graph; tf/graph/order_pass.cc puts it there. Once the ranks have agreed, it
// only searches a set: nothing is exchanged or posted to the lane. RunAgreement ensures that ranks agree on whether an
// exchange is needed: if one rank counts a list as agreed, all do.
//
// Without it, ranks with different graphs would run into collectives that do not match, in the middle of a step, and
// the error would name two single operations. With it, the error comes before the first operation, and names the first
// difference of the lists.
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

// It is no LOCKSTEP_COLLECTIVE_OP, because the pass does not order the nodes that it adds itself.
REGISTER_OP("LockstepRunCheck")
    .Attr("operations: list(string)")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(R"doc(
Fails on every rank if the ranks run different collectives. Only the graph pass uses it.

operations: the collectives of the graph, in order, as text.
)doc");

}  // namespace
}  // namespace lockstep
