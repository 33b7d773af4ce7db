#pragma once

#include "core/embedding/optimizer/update.h"

namespace lockstep {

// No optimizer: the "gradient" is what the row becomes. For rows that were computed elsewhere; numbers are distinct, as
// those of equal numbers would be summed.
Result<UpdateRule> AssignRule(DType row_type, InstructionSet set = BestInstructionSet());

}  // namespace lockstep
