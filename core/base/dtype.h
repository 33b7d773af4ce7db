#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

// The element types that the core computes with or carries. Kernels dispatch on it once, at their edge.
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
};

inline constexpr int kDTypeCount = 10;

// Bytes of one element.
int64_t DTypeSize(DType dtype);

// "float32", "bfloat16", ...: TensorFlow's names.
std::string_view DTypeName(DType dtype);

bool IsFloatingPoint(DType dtype);

}  // namespace lockstep
