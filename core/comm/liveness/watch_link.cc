#include "core/comm/liveness/watch_link.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/strings.h"

namespace lockstep::watch {

Link::Link(const Digest& meeting_key, int own, int to, UniqueFd socket)
    : rank_(to),
      socket_(std::move(socket)),
      sending_(meeting_key, own + to, to == 0 ? Channel::Direction::kToZero : Channel::Direction::kFromZero),
      receiving_(meeting_key, own + to, to == 0 ? Channel::Direction::kFromZero : Channel::Direction::kToZero) {
  if (open()) not_in_forks_.emplace(std::vector<int>{socket_.get()});
}

void Link::Send(const Message& message) {
  if (!open()) return;
  output_ += sending_.Seal(Encode(message));
  Flush();
}

void Link::Flush() {
  while (!output_.empty()) {
    const ssize_t sent = send(socket_.get(), output_.data(), output_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) output_.erase(0, static_cast<size_t>(sent));
    if (sent >= 0 || errno == EINTR) continue;
    if (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM) return;
    // Receive finds the end of the connection, after the remaining input.
    output_.clear();
  }
}

bool Link::Acknowledged() const {
  int bytes = 0;
  return !open() || (flushed() && (ioctl(socket_.get(), SIOCOUTQ, &bytes) != 0 || bytes == 0));
}

Result<std::optional<Message>> Link::Receive() {
  while (open()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<std::string> body, receiving_.Open(input_));
    if (body) {
      std::optional<Message> message = Decode(*body);
      if (!message) return DataLoss("a message that cannot be read");
      return message;
    }
    std::array<char, 4096> buffer;
    const ssize_t got = recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got > 0) {
      input_.append(buffer.data(), static_cast<size_t>(got));
      // Acknowledges at once. A kernel that delays acknowledgements takes the connection for a slow one, and repeats
      // data later after a network failure. The option holds until the next bytes; a failure to set it does no harm.
      const int quick = 1;
      (void)setsockopt(socket_.get(), IPPROTO_TCP, TCP_QUICKACK, &quick, sizeof(quick));
    } else if (got == 0) {
      return Unavailable("its connection was closed");
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      return Unavailable(StrCat("its connection broke (", std::strerror(errno), ")"));
    }
  }
  return std::optional<Message>();
}

// The descriptor's number may belong to another file as soon as it is closed.
void Link::Close() {
  not_in_forks_.reset();
  socket_ = {};
  input_.clear();
  output_.clear();
}

}  // namespace lockstep::watch
