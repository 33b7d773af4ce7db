#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

// The instruction sets for which vector kernels are compiled. A kernel is a loop that is forced inline into one
// function per set; these differ in their target attribute. The function is chosen at run time, by a look at the
// processor. (An ifunc would run before a sanitizer is set up.) Thread-safe.
enum class InstructionSet : uint8_t { kBaseline, kAvx2, kAvx512 };
inline constexpr int kInstructionSetCount = 3;

// Returns "baseline", "avx2" or "avx512". The text lives as long as the program.
std::string_view InstructionSetName(InstructionSet set);

// Returns whether this machine supports the set.
bool IsSupported(InstructionSet set);

// Returns the widest set that this machine supports, determined once.
InstructionSet BestInstructionSet();

}  // namespace lockstep

// The attributes of a function of the set. Its loops may call only functions that are forced inline: any other function
// is compiled once, for the baseline, and shared by all sets.
#define LOCKSTEP_TARGET_AVX2 [[gnu::target("avx2")]]
#define LOCKSTEP_TARGET_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]]
