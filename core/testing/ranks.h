#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/unique_fd.h"

namespace lockstep::testing {

// The end of a rank's process. Exactly one of exit_code and signal is set. A rank that was killed at the deadline has
// ended = false and SIGKILL as its signal.
struct Outcome {
  bool ended = false;                 // false: it still ran at the deadline, and was killed
  std::optional<int> exit_code = {};  // no value: it did not exit by itself
  std::optional<int> signal = {};     // no value: no signal ended it
  std::string report;                 // the texts that it passed to the report function
};

// The ranks of a job as processes, for tests that need real deaths. Each is a fork that runs `body` and ends with its
// value as exit code, without running the test's destructors or exit handlers.
// ```cpp
// Ranks ranks(3, [](int rank, const Ranks::Report& report) {
//   if (rank == 2) FreezeNow();
//   const std::string error = PlayMyPart(rank);
//   report(error);
//   return error.empty() ? 0 : 1;
// });
// const std::vector<Outcome> outcomes = ranks.Wait(/*deadline_s=*/30, /*bystanders=*/{2});
// ```
// Use it before the test has threads of its own. A fork has only the thread that called it, and a mutex that another
// thread held stays locked in it for ever. A failed EXPECT inside `body` does not fail the test, which is another
// process: report the failure and return a value other than 0.
//
// In any case the destructor kills and reaps the ranks, by process id, so that no test leaves processes behind. For one
// thread at a time.
class Ranks {
 public:
  // Sends text to the test; see Outcome::report. Any thread of the rank may call it several times; the texts are
  // joined. In all they have to fit into a pipe's buffer (usually 64 KiB). The rest is dropped, because the test reads
  // only after the rank's end.
  using Report = std::function<void(const std::string& text)>;
  // The work of a rank; its value, 0 to 255, becomes the exit code.
  using Body = std::function<int(int rank, const Report& report)>;

  // Starts all ranks and returns. If the system refuses, the test aborts.
  Ranks(int size, const Body& body);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  pid_t pid(int rank) const { return processes_[rank].pid; }

  // Waits until all ranks except `bystanders` have ended, at most `deadline_s` seconds for all together, then kills the
  // rest. Returns the outcomes of all ranks, in rank order. Call it once. Bystanders are ranks that are or may be
  // frozen: they are not waited for, and are killed with the rest.
  std::vector<Outcome> Wait(double deadline_s, const std::vector<int>& bystanders = {});

 private:
  // The test's data of one rank. Each has to be reaped once, or it stays as a zombie.
  struct Process {
    pid_t pid = -1;
    UniqueFd pidfd;
    UniqueFd reports;  // the reading end
    bool reaped = false;
    Outcome outcome;
  };
  // Waits for the end of a process that has ended or was killed, and reads its reports.
  void Reap(Process& process);

  std::vector<Process> processes_;
};

// A value that the test shares with the processes that it forks afterwards. By it ranks communicate beside the job, for
// instance to count arrivals. T is an atomic, or made of atomics.
// ```cpp
// const Shared<std::atomic<int>> heard(0);
// Ranks ranks(3, [&](int rank, const Ranks::Report&) { ++*heard; ... });
// ```
template <typename T>
class Shared {
 public:
  template <typename... Args>
  explicit Shared(Args&&... args) {
    void* const memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    value_ = new (memory) T(std::forward<Args>(args)...);
  }
  ~Shared() { munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  T* value_;
};

// Waits until `count` is at least `all`, at most `deadline_s` seconds; returns whether it is.
bool AwaitCount(const std::atomic<int>& count, int all, double deadline_s = 60);

// Faults for bodies. The process that calls DieNow dies at once by SIGKILL: no destructor runs and no farewell message
// is sent, as after a crash or when the kernel is out of memory.
[[noreturn]] void DieNow();
// Stops the process with all its threads until it is killed or resumed: the rank lives and does nothing. Its sockets
// stay open, and its pidfd does not report an end.
void FreezeNow();

// Returns "127.0.0.1:port" with a port that was free a moment ago. It is not reserved: another program may take it
// before rank 0 listens there. Another process of tests does not, while this one lives.
std::string FreeLocalAddress();

// Returns the names of all files in /dev/shm, the folder of POSIX shared memory, sorted. Tests compare it before and
// after to see that nothing is left there. It includes files of other programs on the machine.
std::vector<std::string> SharedMemoryFiles();

}  // namespace lockstep::testing
