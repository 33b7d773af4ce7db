#include "core/comm/liveness/after_loss.h"

#include <poll.h>
#include <unistd.h>

#include <cstdlib>

#include "core/base/strings.h"

namespace lockstep {
namespace {

// The process whose program knows of a loss; a fork of it has its own program.
std::atomic<pid_t>& InformedProcess() {
  static std::atomic<pid_t> process = 0;
  return process;
}

}  // namespace

void AfterLoss::ProgramKnows() { InformedProcess() = getpid(); }

void AfterLoss::Lost(const Status& why) {
  if (!seconds_ || end_) return;
  why_ = why;
  end_.emplace(Deadline::After(*seconds_));
}

void AfterLoss::Tick() {
  if (!end_ || !end_->Passed() || !runs_ || InformedProcess() == getpid()) return;
  // If stderr is a full pipe that no process reads, this process ends without a message.
  constexpr int kReader_ms = 200;
  pollfd stderr_entry = {STDERR_FILENO, POLLOUT, 0};
  if (poll(&stderr_entry, 1, kReader_ms) <= 0) std::_Exit(1);
  // Writes the text in one piece, and not by stdio, whose locks the program's threads may hold.
  const std::string text = StrCat("lockstep: ", who_, " exits outside of a collective, ", *seconds_,
                                  " s after the loss of a peer: ", why_.message(), "\n");
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, text.data(), text.size());
  std::_Exit(1);
}

}  // namespace lockstep
