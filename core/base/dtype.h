#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

// The element types that the core computes with or carries. Kernels dispatch on it once, at their edge. A bool is a
// byte: results are 0 or 1, and any other input than 0 is taken for true.
//
// The values are indices: of the table in dtype.cc and of the reductions in comm/collective/reduce.cc, which are
// written in this order. Ranks also compare them with each other (comm/shm/calls.h) and read them in shared memory, so
// ranks of one job have to be of one build. A new type goes to the end, into both tables and kDTypeCount, and raises
// kLayoutVersion (comm/shm/layout.h).
enum class DType : uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kBool,
  kUInt16,
  kUInt32,
  kUInt64,
};

// How many there are: the length of tables by DType.
inline constexpr int kDTypeCount = 13;

// Bytes of one element. All three functions take any enumerator and cannot fail. Thread-safe.
int64_t DTypeSize(DType dtype);

// "float32", "bfloat16", ...: TensorFlow's names. The text lives as long as the program.
std::string_view DTypeName(DType dtype);

// Whether values have fractions: those types alone have a mean.
bool IsFloatingPoint(DType dtype);

}  // namespace lockstep
