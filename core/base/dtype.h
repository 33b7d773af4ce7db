#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

// The element types that the core computes with or carries. Kernels dispatch on the type once, at their edge. A bool is
// a byte: results are 0 or 1, and every input other than 0 is true.
//
// The values are indices into the table in dtype.cc and into the reductions' table (comm/collective/reduce.cc), which
// both follow this order. Ranks also compare the values with each other and read them in shared memory, so the ranks of
// one job have to run the same build. A new type goes to the end, into both tables and kDTypeCount, and raises
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

// The number of types: the length of tables indexed by DType.
inline constexpr int kDTypeCount = 13;

// Returns the bytes of one element. All three functions take any enumerator and cannot fail. Thread-safe.
int64_t DTypeSize(DType dtype);

// Returns TensorFlow's name of the type: "float32", "bfloat16", ... The text lives as long as the program.
std::string_view DTypeName(DType dtype);

// Returns whether the type has fractions. Only such types have a mean.
bool IsFloatingPoint(DType dtype);

}  // namespace lockstep
