#include <string>
#include <utility>
#include <vector>

#include "tf/comm/collective_kernel.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// Stands before the first collective of a graph; tf/graph/order_pass.cc puts it there. Once the ranks have agreed, it
// costs a look into a set.
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
