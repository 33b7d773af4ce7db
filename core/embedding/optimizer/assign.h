#pragma once

#include "core/embedding/optimizer/update.h"

namespace lockstep {

// Returns a rule that replaces the row by the "gradient", for rows that were computed elsewhere. Row numbers must be
// distinct, because values of equal numbers would be summed.
Result<UpdateRule> AssignRule(DType row_type, InstructionSet set = BestInstructionSet());

}  // namespace lockstep
