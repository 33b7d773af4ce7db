#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

// The instruction sets for which vector kernels are compiled: each kernel is a loop that is forced inline into
// functions that differ in their target attribute, and the function is chosen by a look at the processor at run time.
// (Not by an ifunc, which would run before a sanitizer is set up.) Thread-safe.
enum class InstructionSet : uint8_t { kBaseline, kAvx2, kAvx512 };
inline constexpr int kInstructionSetCount = 3;

// "baseline", "avx2", "avx512". The text lives as long as the program.
std::string_view InstructionSetName(InstructionSet set);

// Whether this machine runs it.
bool IsSupported(InstructionSet set);

// The widest that this machine runs, found out once.
InstructionSet BestInstructionSet();

}  // namespace lockstep

// What a function of the set is declared with. Nothing that is not forced inline may be called from such a function's
// loops: a function that is left out of line is compiled once, for the baseline, and shared by all sets.
#define LOCKSTEP_TARGET_AVX2 [[gnu::target("avx2")]]
#define LOCKSTEP_TARGET_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]]
