#pragma once

#include <unistd.h>

#include <utility>

namespace lockstep {

// Owns one file descriptor and closes it. Move-only; thread-compatible. Errors of close(2) are not reported: it is for
// sockets, pidfds and memory, which have nothing to lose then, and not for files that were written.
//
//   UniqueFd fd(socket(...));                         // takes over what the call returned, -1 included
//   if (!fd.valid()) return ErrnoStatus("socket", errno);
class UniqueFd {
 public:
  UniqueFd() = default;
  // Negative: owns nothing.
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  // Swaps: what was owned before is closed with `other`, which for a temporary is at the end of the statement.
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() {
    if (fd_ >= 0) close(fd_);
  }

  bool valid() const { return fd_ >= 0; }
  // For system calls, and -1 where there is none. Stays owned: don't close it, and don't keep it longer than this.
  int get() const { return fd_; }
  // For who takes it over, and closes it.
  [[nodiscard]] int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

}  // namespace lockstep
