#pragma once

#include <cstdint>

#include "core/base/float16.h"

namespace lockstep {

// The storage of elements and the type in which they are computed: the policies of loops that are compiled for
// several instruction sets (instruction_set.h). Load and Store convert between the two.
template <typename T>
struct Plain {
  using Stored = T;
  using Value = T;
  [[gnu::always_inline]] static constexpr Value Load(Stored stored) { return stored; }
  [[gnu::always_inline]] static constexpr Stored Store(Value value) { return value; }
};

// The 16-bit formats accumulate in float: Store rounds once, at the end.
struct Half {
  using Stored = uint16_t;
  using Value = float;
  [[gnu::always_inline]] static constexpr Value Load(Stored stored) { return Float16ToFloat(stored); }
  [[gnu::always_inline]] static constexpr Stored Store(Value value) { return FloatToFloat16(value); }
};

struct BFloat {
  using Stored = uint16_t;
  using Value = float;
  [[gnu::always_inline]] static constexpr Value Load(Stored stored) { return BFloat16ToFloat(stored); }
  [[gnu::always_inline]] static constexpr Stored Store(Value value) { return FloatToBFloat16(value); }
};

}  // namespace lockstep
