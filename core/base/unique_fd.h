#pragma once

#include <unistd.h>

#include <utility>

namespace lockstep {

// Owns one file descriptor and closes it. Move-only; thread-compatible. Errors of close(2) are not reported: use it for
// sockets, pidfds and memory, which have nothing to lose then, and not for files that were written.
//
//   UniqueFd fd(socket(...));                         // takes ownership of the result, -1 included
//   if (!fd.valid()) return ErrnoStatus("socket", errno);
class UniqueFd {
 public:
  UniqueFd() = default;
  // A negative value owns nothing.
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  // Swaps: the former descriptor is closed with `other`, which for a temporary happens at the end of the statement.
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() {
    if (fd_ >= 0) close(fd_);
  }

  bool valid() const { return fd_ >= 0; }
  // Returns the descriptor for system calls, or -1 if there is none. It stays owned: do not close it or keep it longer.
  int get() const { return fd_; }
  // Returns the descriptor and gives up its ownership: the caller closes it.
  [[nodiscard]] int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

}  // namespace lockstep
