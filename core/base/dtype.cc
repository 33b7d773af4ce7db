#include "core/base/dtype.h"

#include <array>

namespace lockstep {
namespace {

struct Traits {
  std::string_view name;
  int64_t size;
  bool floating_point;
};

// In the order of the enumerators, whose values are the indices. The compiler does not notice a type that is missing at
// the end: its name would be empty and its size 0.
constexpr std::array<Traits, kDTypeCount> kTraits = {{
    {"float32", 4, true},
    {"float64", 8, true},
    {"float16", 2, true},
    {"bfloat16", 2, true},
    {"int8", 1, false},
    {"int16", 2, false},
    {"int32", 4, false},
    {"int64", 8, false},
    {"uint8", 1, false},
    {"bool", 1, false},
    {"uint16", 2, false},
    {"uint32", 4, false},
    {"uint64", 8, false},
}};

}  // namespace

int64_t DTypeSize(DType dtype) { return kTraits[static_cast<int>(dtype)].size; }
std::string_view DTypeName(DType dtype) { return kTraits[static_cast<int>(dtype)].name; }
bool IsFloatingPoint(DType dtype) { return kTraits[static_cast<int>(dtype)].floating_point; }

}  // namespace lockstep
