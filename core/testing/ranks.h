#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "core/base/unique_fd.h"

namespace lockstep::testing {

// How the process of a rank ended. Exactly one of exit_code and signal is set; a rank that was killed at the deadline
// has ended = false and SIGKILL for its signal.
struct Outcome {
  bool ended = false;  // false: it was still there at the deadline, and was killed
  int exit_code = -1;  // where it exited
  int signal = 0;      // where a signal ended it
  std::string report;  // what it said through the report function
};

// The ranks of a job as processes, for tests that need real deaths. Each is a fork that runs `body` and ends with its
// value as exit code, without running destructors or exit handlers of the test.
//
//   Ranks ranks(3, [](int rank, const Ranks::Report& report) {
//     if (rank == 2) FreezeNow();
//     const std::string error = PlayMyPart(rank);
//     report(error);
//     return error.empty() ? 0 : 1;
//   });
//   const std::vector<Outcome> outcomes = ranks.Wait(/*deadline_s=*/30, /*bystanders=*/{2});
//
// Use before the test has threads of its own: a fork has only the thread that called it, and a mutex that another one
// held stays locked in it for ever. A failed EXPECT inside `body` does not fail the test, which is another process:
// report it and return something else than 0.
//
// Whatever happens, the destructor kills and reaps what was started, by process id, so that no test leaves processes
// behind. For one thread at a time.
class Ranks {
 public:
  // Says something to the test; see Outcome::report. May be called several times, from any thread of the rank; the
  // texts are joined. All in all it has to fit into a pipe's buffer (64 KiB as a rule): what does not is dropped, as
  // nobody reads before the rank has ended.
  using Report = std::function<void(const std::string& text)>;
  // What a rank does; its value, 0 to 255, becomes the exit code.
  using Body = std::function<int(int rank, const Report& report)>;

  // Starts all ranks and returns. Where the system refuses, the test aborts.
  Ranks(int size, const Body& body);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  pid_t pid(int rank) const { return processes_[rank].pid; }

  // Waits until all ranks but `bystanders` have ended, at most `deadline_s` seconds for all together, then kills the
  // rest. The outcomes of all ranks, in rank order. To be called once. Bystanders are those that are frozen, or may be:
  // they are not waited for, and are killed with the rest.
  std::vector<Outcome> Wait(double deadline_s, const std::vector<int>& bystanders = {});

 private:
  // One rank, as the test sees it. It has to be reaped once, or it stays as a zombie.
  struct Process {
    pid_t pid = -1;
    UniqueFd pidfd;
    UniqueFd reports;  // the reading end
    bool reaped = false;
    Outcome outcome;
  };
  // Waits for the end of a process that has ended or was killed, and reads what it had to say.
  void Reap(Process& process);

  std::vector<Process> processes_;
};

// A value that the test and the processes that it forks afterwards share: what ranks tell each other beside the job,
// such as how many have come so far. T is an atomic, or made of atomics.
//
//   const Shared<std::atomic<int>> heard(0);
//   Ranks ranks(3, [&](int rank, const Ranks::Report&) { ++*heard; ... });
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

// Waits until `count` is at least `all`, at most `deadline_s` seconds; whether it is.
bool AwaitCount(const std::atomic<int>& count, int all, double deadline_s = 60);

// Faults, for bodies. The process that calls DieNow dies at once by SIGKILL: no destructor runs, no farewell is sent,
// as with a crash or the kernel's lack of memory.
[[noreturn]] void DieNow();
// The process stands still, with all of its threads, until it is killed or told to go on: a rank that lives and does
// nothing. Its sockets stay open and its pidfd silent.
void FreezeNow();

// "127.0.0.1:port" with a port that was free a moment ago. Nothing keeps it free: another process may take it before
// rank 0 listens there.
std::string FreeLocalAddress();

// The names of all files in /dev/shm, the folder of POSIX shared memory, sorted: compared before and after by tests
// that nothing was left there. Files of other programs on the machine are among them.
std::vector<std::string> SharedMemoryFiles();

}  // namespace lockstep::testing
