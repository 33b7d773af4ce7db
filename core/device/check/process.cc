#include "core/device/check/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "core/base/strings.h"

// On the pipe a line is its kind, a tabulator, its text, and a zero byte.

namespace lockstep::device {
namespace {

// How long a killed process may take to end. One that waits inside of the driver may never do.
constexpr double kKilled_s = 3;

// Writes all of it, unless the reader has gone.
void Write(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t bytes = write(fd, text.data(), text.size());
    if (bytes <= 0) return;
    text.remove_prefix(static_cast<size_t>(bytes));
  }
}

// Reads until the process closes its end, or time is over. Returns whether it has closed.
bool ReadAll(int fd, const Deadline& deadline, std::string* text) {
  pollfd entry = {fd, POLLIN, 0};
  while (poll(&entry, 1, deadline.PollMs()) > 0) {
    char part[4096];
    const ssize_t bytes = read(fd, part, sizeof(part));
    if (bytes <= 0) return true;
    text->append(part, static_cast<size_t>(bytes));
  }
  return false;
}

std::vector<Line> Split(std::string_view text) {
  std::vector<Line> lines;
  for (size_t end; (end = text.find('\0')) != std::string_view::npos; text.remove_prefix(end + 1)) {
    const std::string_view line = text.substr(0, end);
    const size_t tabulator = line.find('\t');
    if (tabulator == std::string_view::npos) continue;
    lines.push_back({std::string(line.substr(0, tabulator)), std::string(line.substr(tabulator + 1))});
  }
  return lines;
}

// Waits until the process has ended, or time is over. Returns whether it has.
bool Reap(pid_t pid, const Deadline& deadline, int* status) {
  while (waitpid(pid, status, WNOHANG) == 0) {
    if (deadline.Passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Returns "" for a process that has returned from its part.
std::string EndText(int status) {
  if (WIFSIGNALED(status)) return StrCat("ended by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
  return WEXITSTATUS(status) == 0 ? "" : StrCat("ended with exit code ", WEXITSTATUS(status));
}

}  // namespace

Process::Process(const Part& part) {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  std::fflush(nullptr);  // or the process would write it again
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // it has ended before
    part([fd = ends[1]](std::string_view kind, std::string_view text) { Write(fd, StrCat(kind, '\t', text) + '\0'); });
    std::fflush(nullptr);
    _exit(0);  // static objects are the parent's
  }
  close(ends[1]);
  lines_ = UniqueFd(ends[0]);
}

std::vector<Line> Process::Wait(const Deadline& deadline) {
  if (pid_ < 0) return {{"failure", "no process: fork or pipe failed"}};
  std::string text, failure;
  int status = 0;
  if (ReadAll(lines_.get(), deadline, &text) && Reap(pid_, deadline, &status)) {
    failure = EndText(status);
  } else {
    failure = StrCat("killed: no end within ", deadline.Elapsed(), " s");
    kill(pid_, SIGKILL);
    const Deadline killed = Deadline::After(kKilled_s);
    (void)ReadAll(lines_.get(), killed, &text);  // what it wrote before
    if (!Reap(pid_, killed, &status)) failure += StrCat("; process ", pid_, " did not end by SIGKILL");
  }
  std::vector<Line> lines, all = Split(text);
  std::string next;
  for (Line& line : all) {
    if (line.kind == kNext) {
      next = std::move(line.text);
    } else {
      lines.push_back(std::move(line));
    }
  }
  if (!failure.empty()) lines.push_back({"failure", StrCat(next.empty() ? "" : StrCat("in ", next, ": "), failure)});
  return lines;
}

}  // namespace lockstep::device
