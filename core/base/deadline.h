#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>

namespace lockstep {

// A point in monotonic time by which something has to be done. It is set once, where a wait begins, and passed down to
// each system call of it, so that many short waits do not add up to more than the one long wait that was promised:
//
//   const Deadline deadline = Deadline::After(options.timeout_s);
//   while (!done()) {
//     if (deadline.Passed()) return DeadlineExceeded(...);
//     poll(&entry, 1, deadline.PollMs());  // may wake early: the loop looks again
//   }
//
// All times are seconds, but for PollMs. A value; thread-compatible.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // From now on. Zero or less has passed already: what is tried with it is tried once, without waiting.
  static Deadline After(double seconds) { return Deadline(seconds); }

  // Seconds since the deadline was set.
  double Elapsed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  // Seconds that are left, never negative.
  double Left() const { return std::max(0.0, seconds_ - Elapsed()); }
  bool Passed() const { return Left() <= 0; }
  // What is left, at most `most_s`, as poll(2) wants it: milliseconds, rounded up, so that a wait of a fraction of a
  // millisecond sleeps instead of turning round. The limit keeps a very long deadline inside an int; a caller whose
  // poll comes back without an event asks Passed(), as it may be the limit that ended it.
  int PollMs(double most_s = 3600) const { return static_cast<int>(std::ceil(std::min(Left(), most_s) * 1e3)); }

 private:
  explicit Deadline(double seconds) : start_(Clock::now()), seconds_(seconds) {}

  Clock::time_point start_;
  double seconds_;
};

}  // namespace lockstep
