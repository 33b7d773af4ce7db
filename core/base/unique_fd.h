#pragma once

#include <unistd.h>

#include <optional>
#include <utility>

namespace lockstep {

// Owns one file descriptor and closes it. Move-only; thread-compatible. Errors of close(2) are not reported: use it for
// sockets, pidfds and memory, which have nothing to lose then, and not for files that were written.
//
// System calls use -1 for "no descriptor": they return it, and poll ignores entries with it. UniqueFd keeps to that
// convention, so it takes their results and serves their calls. Interfaces between parts of this project pass
// std::optional<int> instead, which is empty without a descriptor.
// ```cpp
// UniqueFd fd(socket(...));                         // takes ownership of the result, -1 included
// if (!fd.valid()) return ErrnoStatus("socket", errno);
// ```
class UniqueFd {
 public:
  // The number that stands for "no descriptor" in system calls.
  static constexpr int kNone = -1;

  UniqueFd() = default;
  // A negative value owns nothing.
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, kNone)) {}
  // Swaps: the former descriptor is closed with `other`, which for a temporary happens at the end of the statement.
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() {
    if (fd_ >= 0) close(fd_);
  }

  bool valid() const { return fd_ >= 0; }
  // Returns the descriptor for system calls, or kNone if there is none. It stays owned: do not close it or keep it
  // longer.
  int get() const { return fd_; }
  // Returns the same for interfaces: no value without a descriptor.
  std::optional<int> borrowed() const { return valid() ? std::optional(fd_) : std::nullopt; }
  // Returns the descriptor and gives up its ownership: the caller closes it.
  [[nodiscard]] int Release() { return std::exchange(fd_, kNone); }

 private:
  int fd_ = kNone;
};

}  // namespace lockstep
