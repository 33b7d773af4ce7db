#pragma once

#include <string>

#include "core/base/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/bridge/convert.h"

// Errors that a lookup's steps before its exchange find in the data of this rank. If such a step failed, the peers
// would wait in the exchange for a rank that does not come. So before an exchange, the step succeeds and its output
// `problem` has the error's text. The route takes the text as an input and declines. Then all ranks raise the error.
//
//   indices --> LockstepSplits --splits, problem--> LockstepValidIds --ids, problem--> LockstepRoute
//
// defers: whether a route follows. Otherwise the step fails by itself.
#define LOCKSTEP_DEFERS_ATTR "defers: bool = false"

namespace lockstep {

// Writes the error's text, "" for none, to output `output`, a scalar. Returns the error if it is not deferred; only
// INVALID_ARGUMENT is.
inline Status ReportProblem(::tensorflow::OpKernelContext* context, int output, const Status& found, bool defers) {
  if (!found.ok() && (!defers || found.code() != StatusCode::kInvalidArgument)) return found;
  LOCKSTEP_ASSIGN_OR_RETURN(::tensorflow::Tensor * problem, AllocateTensor(context, output, {}));
  problem->scalar<::tensorflow::tstring>()() = found.ok() ? std::string() : std::string(found.message());
  return OkStatus();
}

// Returns the first error among the kernel's last `count` inputs, which are outputs `problem`.
inline Status ReportedProblem(::tensorflow::OpKernelContext* context, int count) {
  for (int i = context->num_inputs() - count; i < context->num_inputs(); ++i) {
    const auto texts = context->input(i).flat<::tensorflow::tstring>();
    for (int64_t k = 0; k < texts.size(); ++k) {
      if (!texts(k).empty()) return InvalidArgument(std::string(texts(k)));
    }
  }
  return OkStatus();
}

}  // namespace lockstep
