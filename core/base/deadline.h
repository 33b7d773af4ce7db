#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>

namespace lockstep {

// A point in monotonic time by which something has to be done. A value; thread-compatible.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline After(double seconds) { return Deadline(seconds); }

  // Seconds since the deadline was set.
  double Elapsed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  // Seconds that are left, never negative.
  double Left() const { return std::max(0.0, seconds_ - Elapsed()); }
  bool Passed() const { return Left() <= 0; }
  // What is left, at most `most_s`, as poll(2) wants it: milliseconds, rounded up.
  int PollMs(double most_s = 3600) const { return static_cast<int>(std::ceil(std::min(Left(), most_s) * 1e3)); }

 private:
  explicit Deadline(double seconds) : start_(Clock::now()), seconds_(seconds) {}

  Clock::time_point start_;
  double seconds_;
};

}  // namespace lockstep
