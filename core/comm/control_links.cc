#include "core/comm/control_links.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/deadline.h"
#include "core/base/strings.h"

namespace lockstep {
namespace {

constexpr size_t kHeaderBytes = 4;
// What is read of a peer at a time: more than most sockets hold.
constexpr size_t kTurnBytes = 4 * ControlLinks::kPieceBytes;

uint32_t LengthOf(std::string_view bytes) { return ByteReader(bytes).Number<uint32_t>(); }

}  // namespace

ControlLinks::ControlLinks(std::vector<int> sockets) : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (const int socket : sockets) links_.push_back({socket, "", ""});
}

Status ControlLinks::Send(int rank, std::string_view message) {
  if (message.size() > kMaxMessageBytes) {
    return InvalidArgument(
        StrCat("a message of ", message.size(), " bytes to rank ", rank, ", wanted at most ", kMaxMessageBytes));
  }
  ByteWriter header;
  header.Number(static_cast<uint32_t>(message.size()));
  bool left;
  {
    const std::lock_guard lock(mutex_);
    Link& link = links_[rank];
    if (link.socket < 0) return OkStatus();
    link.out += header.Take();
    link.out += message;
    Flush(link);
    left = !link.out.empty();
  }
  if (left) Wake();
  return OkStatus();
}

void ControlLinks::Flush(Link& link) {
  size_t sent = 0;
  while (sent < link.out.size()) {
    const size_t piece = std::min(link.out.size() - sent, kPieceBytes);
    const ssize_t n = send(link.socket, link.out.data() + sent, piece, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const bool later = errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM;
      // Of a peer that is gone, Receive sees the end.
      if (!later) sent = link.out.size();
      break;
    }
    sent += static_cast<size_t>(n);
  }
  link.out.erase(0, sent);
}

std::vector<ControlLinks::Event> ControlLinks::Await(double seconds) {
  std::vector<pollfd> entries;
  {
    const std::lock_guard lock(mutex_);
    for (const Link& link : links_) {
      entries.push_back({link.socket, static_cast<short>(link.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    }
  }
  entries.push_back({wake_.get(), POLLIN, 0});
  constexpr double kMost_s = 3600;
  const int timeout_ms = seconds < 0 ? -1 : static_cast<int>(std::ceil(std::min(seconds, kMost_s) * 1e3));
  std::vector<Event> events;
  if (poll(entries.data(), entries.size(), timeout_ms) <= 0) return events;
  if (entries.back().revents != 0) {
    uint64_t count;
    // Without a reader it would stay awake; nothing else can go wrong.
    [[maybe_unused]] const ssize_t n = read(wake_.get(), &count, sizeof(count));
  }
  for (size_t rank = 0; rank < links_.size(); ++rank) {
    if ((entries[rank].revents & POLLOUT) != 0) {
      const std::lock_guard lock(mutex_);
      Flush(links_[rank]);
    }
    if ((entries[rank].revents & ~POLLOUT) != 0) Receive(static_cast<int>(rank), &events);
  }
  return events;
}

void ControlLinks::Receive(int rank, std::vector<Event>* events) {
  Link& link = links_[rank];
  std::array<char, kPieceBytes> buffer;
  bool closed = false;
  size_t received = 0;
  // A peer that sends without end has its turn again after the others: what lies here unread never grows beyond the
  // message that it is a part of.
  while (!closed && received < kTurnBytes) {
    const ssize_t n = recv(link.socket, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    closed = n <= 0;
    if (n > 0) link.in.append(buffer.data(), static_cast<size_t>(n));
    if (n > 0) received += static_cast<size_t>(n);
    if (n > 0 && static_cast<size_t>(n) < buffer.size()) break;
  }
  size_t done = 0;
  while (link.in.size() - done >= kHeaderBytes) {
    const uint32_t length = LengthOf(std::string_view(link.in).substr(done));
    if (length > kMaxMessageBytes) {
      closed = true;
      break;
    }
    if (link.in.size() - done - kHeaderBytes < length) break;
    events->push_back({rank, link.in.substr(done + kHeaderBytes, length)});
    done += kHeaderBytes + length;
  }
  link.in.erase(0, done);
  if (!closed) return;
  {
    const std::lock_guard lock(mutex_);
    link = {-1, "", ""};
  }
  events->push_back({rank, "", true});
}

bool ControlLinks::Push(double seconds) {
  const Deadline deadline = Deadline::After(seconds);
  while (true) {
    std::vector<pollfd> entries;
    {
      const std::lock_guard lock(mutex_);
      for (Link& link : links_) {
        if (!link.out.empty()) Flush(link);
        if (!link.out.empty()) entries.push_back({link.socket, POLLOUT, 0});
      }
    }
    if (entries.empty()) return true;
    if (deadline.Passed()) return false;
    poll(entries.data(), entries.size(), deadline.PollMs());
  }
}

void ControlLinks::Wake() {
  const uint64_t one = 1;
  // Full means that there are wake-ups enough.
  [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof(one));
}

bool ControlLinks::flushed() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(links_.begin(), links_.end(), [](const Link& link) { return link.out.empty(); });
}

}  // namespace lockstep
