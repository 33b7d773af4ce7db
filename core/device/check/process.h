#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/unique_fd.h"

namespace lockstep::device {

// A text that a part of the program reports, with its kind: "failure", "measure", ... Neither has a zero byte.
struct Line {
  std::string kind;
  std::string text;
};
using Report = std::function<void(std::string_view kind, std::string_view text)>;
// The kind of a line that says what the part does next. Only the failure of a process names it.
inline constexpr char kNext[] = "next";

// A part of the program. It reports errors as lines of kind "failure".
using Part = std::function<void(const Report& report)>;

// A part of the program in a process of its own, for two reasons. A device that a process has used cannot be used in
// its forks. And a part that crashes or hangs must not take the others' results with it. Thread-compatible.
class Process {
 public:
  // Forks. The process is killed when this one ends.
  explicit Process(const Part& part);
  Process(Process&& other) noexcept = default;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Returns what the part has reported. If the process has not ended by itself at the deadline, it is killed. Then,
  // and after any other end than a return of the part, the last line has the kind "failure". Never waits for
  // more than some seconds after the deadline, also for a process that the driver keeps. Call it once.
  std::vector<Line> Wait(const Deadline& deadline);

 private:
  pid_t pid_ = -1;  // -1: the fork failed
  UniqueFd lines_;
};

}  // namespace lockstep::device
