#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"

namespace lockstep::testing {

// How the process of a rank ended.
struct Outcome {
  bool ended = false;  // false: it was still there at the deadline, and was killed
  int exit_code = -1;  // where it exited
  int signal = 0;      // where a signal ended it
  std::string report;  // what it said through the report function
};

// The ranks of a job as processes, for tests that need real deaths. Each is a fork that runs `body` and ends with its
// value as exit code, without running destructors or exit handlers of the test. Use before the test has threads of its
// own. Whatever happens, the destructor kills and reaps what was started, by process id.
class Ranks {
 public:
  // Says something to the test; see Outcome::report.
  using Report = std::function<void(const std::string& text)>;
  using Body = std::function<int(int rank, const Report& report)>;

  Ranks(int size, const Body& body);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  pid_t pid(int rank) const { return processes_[rank].pid; }

  // Waits until all ranks but `bystanders` have ended, at most `deadline_s` seconds, then kills the rest. The outcomes
  // of all ranks, in rank order. To be called once.
  std::vector<Outcome> Wait(double deadline_s, const std::vector<int>& bystanders = {});

 private:
  struct Process {
    pid_t pid = -1;
    UniqueFd pidfd;
    UniqueFd reports;  // the reading end
    bool reaped = false;
    Outcome outcome;
  };
  void Reap(Process& process);

  std::vector<Process> processes_;
};

// Faults, for bodies: the process that calls them dies at once, or stands still until it is killed.
[[noreturn]] void DieNow();
void FreezeNow();

// "127.0.0.1:port" with a port that was free a moment ago.
std::string FreeLocalAddress();

// The names of all files in the folder of POSIX shared memory, sorted.
std::vector<std::string> SharedMemoryFiles();

}  // namespace lockstep::testing
