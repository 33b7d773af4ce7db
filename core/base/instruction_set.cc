#include "core/base/instruction_set.h"

namespace lockstep {

std::string_view InstructionSetName(InstructionSet set) {
  switch (set) {
    case InstructionSet::kBaseline: return "baseline";
    case InstructionSet::kAvx2: return "avx2";
    case InstructionSet::kAvx512: return "avx512";
  }
  return "unknown";
}

bool IsSupported(InstructionSet set) {
  switch (set) {
    case InstructionSet::kBaseline: return true;
    case InstructionSet::kAvx2: return __builtin_cpu_supports("avx2");
    case InstructionSet::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
  return false;
}

InstructionSet BestInstructionSet() {
  static const InstructionSet best = IsSupported(InstructionSet::kAvx512) ? InstructionSet::kAvx512
                                     : IsSupported(InstructionSet::kAvx2) ? InstructionSet::kAvx2
                                                                          : InstructionSet::kBaseline;
  return best;
}

}  // namespace lockstep
