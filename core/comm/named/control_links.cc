#include "core/comm/named/control_links.h"

#include <errno.h>
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
// The most bytes that are read from a peer in one turn: more than most sockets hold.
constexpr size_t kTurnBytes = 4 * ControlLinks::kPieceBytes;

uint32_t LengthOf(std::string_view bytes) { return ByteReader(bytes).Number<uint32_t>(); }

// Returns the time for poll. No value: without a limit. A time below 0 has passed, like 0.
int PollMs(std::optional<double> seconds) {
  constexpr int kNoLimit = -1;
  constexpr double kMost_s = 3600;
  return seconds ? static_cast<int>(std::ceil(std::clamp(*seconds, 0.0, kMost_s) * 1e3)) : kNoLimit;
}

}  // namespace

ControlLinks::ControlLinks(const std::vector<std::optional<int>>& sockets,
                           const std::vector<std::optional<int>>& deaths,
                           const std::vector<std::optional<Digest>>& keys, int self)
    : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (size_t rank = 0; rank < sockets.size(); ++rank) {
    links_.push_back({sockets[rank], rank < deaths.size() && sockets[rank] ? deaths[rank] : std::nullopt, "", ""});
    if (rank >= keys.size() || !keys[rank]) continue;
    const int peer = static_cast<int>(rank);
    links_.back().from_peer.emplace(*keys[rank], kSealOfLinks, peer, self);
    links_.back().to_peer.emplace(*keys[rank], kSealOfLinks, self, peer);
  }
}

Status ControlLinks::Usable() const {
  return wake_.valid() ? OkStatus() : ResourceExhausted("no file descriptor left for links between ranks");
}

void ControlLinks::Send(int rank, std::string_view message) {
  ByteWriter header;
  bool left;
  {
    const std::lock_guard lock(mutex_);
    Link& link = links_[rank];
    if (!link.socket) return;
    const size_t seal_bytes = link.to_peer ? size_t{Seal::kBytes} : 0;
    header.Number(static_cast<uint32_t>(seal_bytes + message.size()));
    link.out += header.Take();
    const size_t begin = link.out.size();
    link.out.append(seal_bytes, '\0');
    link.out += message;
    if (link.to_peer) link.to_peer->Close(link.out.data() + begin, static_cast<int64_t>(message.size()));
    Flush(link);
    left = !link.out.empty();
  }
  if (left) Wake();
}

void ControlLinks::Flush(Link& link) {
  size_t sent = 0;
  while (sent < link.out.size()) {
    const size_t piece = std::min(link.out.size() - sent, kPieceBytes);
    const ssize_t n = send(*link.socket, link.out.data() + sent, piece, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const bool later = errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM;
      // If the peer is gone, Receive notices it.
      if (!later) sent = link.out.size();
      break;
    }
    sent += static_cast<size_t>(n);
  }
  link.out.erase(0, sent);
}

std::vector<ControlLinks::Event> ControlLinks::Await(std::optional<double> seconds) {
  awaited_.clear();
  {
    const std::lock_guard lock(mutex_);
    for (const Link& link : links_) {
      awaited_.push_back(
          {link.socket.value_or(UniqueFd::kNone), static_cast<short>(link.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
      awaited_.push_back({link.death.value_or(UniqueFd::kNone), POLLIN, 0});
    }
  }
  awaited_.push_back({wake_.get(), POLLIN, 0});
  std::vector<Event> events;
  if (poll(awaited_.data(), awaited_.size(), PollMs(seconds)) <= 0) return events;
  if (awaited_.back().revents != 0) ForgetWakes();
  for (size_t rank = 0; rank < links_.size(); ++rank) {
    const pollfd &socket = awaited_[2 * rank], &death = awaited_[2 * rank + 1];
    if ((socket.revents & POLLOUT) != 0) {
      const std::lock_guard lock(mutex_);
      Flush(links_[rank]);
    }
    const bool dead = death.revents != 0;
    if (dead || (socket.revents & ~POLLOUT) != 0) Receive(static_cast<int>(rank), dead, &events);
  }
  return events;
}

void ControlLinks::Receive(int rank, bool dead, std::vector<Event>* events) {
  Link& link = links_[rank];
  std::array<char, kPieceBytes> buffer;
  bool closed = false, failed = false;
  size_t received = 0;
  // A peer that sends without end has to wait for the others' turns. So the unread bytes here never grow beyond the
  // message that they are a part of. A peer that is gone sends no more. A packet socket reports an error before the
  // data in it, for example of a peer that ended with unread messages. It reports the error only once, and the peer's
  // data comes after it.
  while (dead || failed || received < kTurnBytes) {
    const ssize_t n = recv(*link.socket, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n > 0) {
      link.in.append(buffer.data(), static_cast<size_t>(n));
      received += static_cast<size_t>(n);
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    closed = n == 0 || failed;
    if (closed) break;
    failed = true;
  }
  closed = closed || failed || dead;
  const Status broken = TakeMessages(rank, link, events);
  if (!closed && broken.ok()) return;
  {
    const std::lock_guard lock(mutex_);
    link = {};
  }
  events->push_back({rank, "", true, broken});
}

Status ControlLinks::TakeMessages(int rank, Link& link, std::vector<Event>* events) {
  const size_t seal_bytes = link.from_peer ? size_t{Seal::kBytes} : 0;
  Status broken;
  size_t done = 0;
  while (link.in.size() - done >= kHeaderBytes) {
    const size_t length = LengthOf(std::string_view(link.in).substr(done));
    if (length < seal_bytes || length > seal_bytes + kMaxMessageBytes) {
      broken = DataLoss(StrCat("rank ", rank, " announces a message of ", length, " bytes on its link, wanted ",
                               seal_bytes, " to ", seal_bytes + kMaxMessageBytes));
      break;
    }
    if (link.in.size() - done - kHeaderBytes < length) break;
    std::string_view message = std::string_view(link.in).substr(done + kHeaderBytes, length);
    if (link.from_peer) {
      const auto got = link.from_peer->Open(message.data(), static_cast<int64_t>(length - seal_bytes));
      if (!got || got->size() != length - seal_bytes) {
        broken = DataLoss(StrCat("a message on the link from rank ", rank,
                                 " is not what that rank sent; it was damaged, repeated or forged on its way"));
        break;
      }
      message = *got;
    }
    events->push_back({rank, std::string(message)});
    done += kHeaderBytes + length;
  }
  link.in.erase(0, done);
  return broken;
}

bool ControlLinks::Push(double seconds) {
  const Deadline deadline = Deadline::After(seconds);
  while (true) {
    std::vector<pollfd> entries;
    {
      const std::lock_guard lock(mutex_);
      for (Link& link : links_) {
        if (!link.out.empty()) Flush(link);
        if (!link.out.empty()) entries.push_back({*link.socket, POLLOUT, 0});
      }
    }
    if (entries.empty()) return true;
    if (deadline.Passed()) return false;
    poll(entries.data(), entries.size(), deadline.PollMs());
  }
}

void ControlLinks::WaitForWake(double seconds) {
  pollfd wake = {wake_.get(), POLLIN, 0};
  if (poll(&wake, 1, PollMs(seconds)) > 0) ForgetWakes();
}

void ControlLinks::ForgetWakes() {
  uint64_t count;
  // There may be none left; nothing else can go wrong.
  [[maybe_unused]] const ssize_t n = read(wake_.get(), &count, sizeof(count));
}

void ControlLinks::Wake() {
  const uint64_t one = 1;
  // If the counter is full, there are enough wake-ups already.
  [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof(one));
}

bool ControlLinks::flushed() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(links_.begin(), links_.end(), [](const Link& link) { return link.out.empty(); });
}

}  // namespace lockstep
