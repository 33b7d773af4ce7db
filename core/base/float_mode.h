#pragma once

#include <xmmintrin.h>

namespace lockstep {

// While this object lives, its thread computes with numbers near zero as IEEE 754 says; afterwards as before.
// TensorFlow makes its threads treat such numbers as zero. Threads that these start inherit it, other threads do not. A
// result that has to be equal on all ranks, or equal to another program's, must not depend on the thread that computes
// it.
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
