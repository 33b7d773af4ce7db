#include "core/testing/ranks.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "core/base/deadline.h"
#include "core/base/strings.h"

// A rank is a fork with a pipe to the test (its reports) and a pidfd, by which the test waits for its end with a
// deadline; waitpid has none. The parent opens the pidfd before it reaps the child, so it refers to that child.

namespace lockstep::testing {
namespace {

// Aborts the test if a system call failed.
template <typename T>
T Need(T value, const char* what) {
  if (value < 0) {
    std::perror(what);
    std::abort();
  }
  return value;
}

}  // namespace

// Flushes the test's buffered output first, or each child would write it again.
Ranks::Ranks(int size, const Body& body) : processes_(size) {
  std::fflush(nullptr);
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    Need(pipe2(ends, O_CLOEXEC | O_NONBLOCK), "pipe2");
    UniqueFd reading(ends[0]), writing(ends[1]);
    Process& process = processes_[rank];
    // The child inherits the reading ends of itself and of the ranks before. That does no harm, because no process
    // waits for their end of file.
    process.pid = Need(fork(), "fork");
    if (process.pid == 0) {
      const int code = body(rank, [&](const std::string& text) {
        // Reports are a few lines, and fit into the pipe's buffer.
        (void)!write(writing.get(), text.data(), text.size());
      });
      std::fflush(nullptr);
      // exit() is not called: static objects and the test framework belong to the parent.
      _exit(code);
    }
    process.reports = std::move(reading);
    process.pidfd = UniqueFd(Need(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)), "pidfd_open"));
  }
}

Ranks::~Ranks() {
  for (Process& process : processes_) {
    if (process.reaped) continue;
    kill(process.pid, SIGKILL);
    Reap(process);
  }
}

// Waits for one rank after another, all by the same deadline, so each rank has the full time.
std::vector<Outcome> Ranks::Wait(double deadline_s, const std::vector<int>& bystanders) {
  const Deadline deadline = Deadline::After(deadline_s);
  for (int rank = 0; rank < static_cast<int>(processes_.size()); ++rank) {
    if (std::find(bystanders.begin(), bystanders.end(), rank) != bystanders.end()) continue;
    pollfd entry = {processes_[rank].pidfd.get(), POLLIN, 0};
    processes_[rank].outcome.ended = poll(&entry, 1, deadline.PollMs()) > 0;
  }
  std::vector<Outcome> outcomes;
  for (Process& process : processes_) {
    // Bystanders may also have ended without being killed.
    pollfd entry = {process.pidfd.get(), POLLIN, 0};
    if (poll(&entry, 1, 0) > 0)
      process.outcome.ended = true;
    else
      kill(process.pid, SIGKILL);
    Reap(process);
    outcomes.push_back(process.outcome);
  }
  return outcomes;
}

// The process has ended or got its SIGKILL, so waitpid is short. The pipe does not block: a grandchild may still hold
// its writing end, and then there would be no end of file to wait for.
void Ranks::Reap(Process& process) {
  int status = 0;
  waitpid(process.pid, &status, 0);
  process.reaped = true;
  if (WIFEXITED(status)) process.outcome.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) process.outcome.signal = WTERMSIG(status);
  char buffer[4096];
  ssize_t got;
  while ((got = read(process.reports.get(), buffer, sizeof(buffer))) > 0) {
    process.outcome.report.append(buffer, static_cast<size_t>(got));
  }
}

bool AwaitCount(const std::atomic<int>& count, int all, double deadline_s) {
  for (const Deadline deadline = Deadline::After(deadline_s); count < all && !deadline.Passed();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return count >= all;
}

// In a process of several threads, kill may return before another thread has taken the signal.
void DieNow() {
  while (true) kill(getpid(), SIGKILL);
}

void FreezeNow() { kill(getpid(), SIGSTOP); }

// Opened before main, because tests count this process's descriptors.
const UniqueFd port_locks(open(StrCat("/tmp/lockstep-test-ports-", getuid()).c_str(), O_CREAT | O_RDWR | O_CLOEXEC,
                               0600));

// The kernel's own choice would be one of the ports that it gives to outgoing connections, from 32768 on. One of those,
// of a test that runs beside this one, could take the port before a rank listens. Only servers take the ports here.
// Each process begins elsewhere among them, and locks the byte of the port's number in a file, so that no other process
// of tests gets the port while this one lives. The socket never listens, so the port is free once it is closed.
std::string FreeLocalAddress() {
  constexpr unsigned kFirst = 10000, kPorts = 22000;
  static unsigned next = std::random_device()();
  for (unsigned tried = 0; tried < kPorts; ++tried) {
    const UniqueFd fd(Need(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket"));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(kFirst + next++ % kPorts));
    struct flock byte = {};
    byte.l_type = F_WRLCK;
    byte.l_start = ntohs(address.sin_port);
    byte.l_len = 1;
    // Without the file there is only chance.
    if (port_locks.valid() && fcntl(port_locks.get(), F_OFD_SETLK, &byte) != 0) continue;
    if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
      return StrCat("127.0.0.1:", ntohs(address.sin_port));
    }
  }
  std::perror("bind");
  std::abort();
}

std::vector<std::string> SharedMemoryFiles() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace lockstep::testing
