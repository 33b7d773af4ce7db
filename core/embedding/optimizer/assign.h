#pragma once

#include "core/embedding/optimizer/update.h"

namespace lockstep {

// Returns a rule that replaces each row by its "gradient", for rows that were computed elsewhere. This is not an
// optimizer, and no operation names it. It lies here because it is made from a formula as well (kernel.h). So
// DynamicTable::WriteRows rounds 16-bit rows as updates do.
//
// Row numbers must be distinct, because values of equal numbers would be summed.
Result<UpdateRule> AssignRule(DType row_type, InstructionSet set = BestInstructionSet());

}  // namespace lockstep
