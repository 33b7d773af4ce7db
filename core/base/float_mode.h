#pragma once

#include <xmmintrin.h>

namespace lockstep {

// While it lives, this thread computes with numbers near zero as IEEE 754 says, and then again as before. TensorFlow
// has its threads take such numbers for zero, others don't: what is to come out the same on all ranks must not depend
// on whose thread computes it.
class GradualUnderflow {
 public:
  GradualUnderflow() : before_(_mm_getcsr()) { _mm_setcsr(before_ & ~(kFlushToZero | kDenormalsAreZero)); }
  ~GradualUnderflow() { _mm_setcsr(before_); }
  GradualUnderflow(const GradualUnderflow&) = delete;
  GradualUnderflow& operator=(const GradualUnderflow&) = delete;

 private:
  static constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  const unsigned before_;
};

}  // namespace lockstep
