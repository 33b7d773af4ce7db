#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>

namespace lockstep {

// A point in monotonic time by which something has to be done. It is set once, where a wait begins, and is passed down
// to each system call of the wait. So many short waits do not add up to more than the promised one.
// ```cpp
// const Deadline deadline = Deadline::After(options.timeout_s);
// while (!done()) {
//   if (deadline.Passed()) return DeadlineExceeded(...);
//   poll(&entry, 1, deadline.PollMs());  // may wake early: the loop looks again
// }
// ```
// All times are in seconds, except PollMs. A value; thread-compatible.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // A deadline that many seconds from now. Zero or less has already passed: an attempt with it runs once, without
  // waiting.
  static Deadline After(double seconds) { return Deadline(seconds); }

  // Returns the seconds since the deadline was set.
  double Elapsed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  // Returns the seconds that are left, never negative.
  double Left() const { return std::max(0.0, seconds_ - Elapsed()); }
  bool Passed() const { return Left() <= 0; }
  // Returns the time that is left, at most `most_s`, in milliseconds for poll(2). The number is rounded up, so that a
  // wait of a fraction of a millisecond sleeps and does not spin. `most_s` keeps a very long deadline inside an int. If
  // poll ends without an event, the caller checks Passed(), because `most_s` may have ended the wait.
  int PollMs(double most_s = 3600) const { return static_cast<int>(std::ceil(std::min(Left(), most_s) * 1e3)); }

 private:
  explicit Deadline(double seconds) : start_(Clock::now()), seconds_(seconds) {}

  Clock::time_point start_;
  double seconds_;
};

}  // namespace lockstep
