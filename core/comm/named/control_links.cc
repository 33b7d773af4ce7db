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
    in_.push_back({sockets[rank], rank < deaths.size() && sockets[rank] ? deaths[rank] : std::nullopt, ""});
    out_.push_back({sockets[rank], ""});
    if (rank >= keys.size() || !keys[rank]) continue;
    const int peer = static_cast<int>(rank);
    in_.back().seal.emplace(*keys[rank], kSealOfLinks, peer, self);
    out_.back().seal.emplace(*keys[rank], kSealOfLinks, self, peer);
  }
}

Status ControlLinks::Usable() const {
  return wake_.valid() ? OkStatus() : ResourceExhausted("no file descriptor left for links between ranks");
}

void ControlLinks::Send(int rank, std::string_view message) {
  ByteWriter header;
  bool left;
  {
    const MutexLock lock(mutex_);
    Outbox& outbox = out_[rank];
    if (!outbox.socket) return;
    const size_t seal_bytes = outbox.seal ? size_t{Seal::kBytes} : 0;
    header.Number(static_cast<uint32_t>(seal_bytes + message.size()));
    outbox.bytes += header.Take();
    const size_t begin = outbox.bytes.size();
    outbox.bytes.append(seal_bytes, '\0');
    outbox.bytes += message;
    if (outbox.seal) outbox.seal->Close(outbox.bytes.data() + begin, static_cast<int64_t>(message.size()));
    Flush(outbox);
    left = !outbox.bytes.empty();
  }
  if (left) Wake();
}

void ControlLinks::Flush(Outbox& outbox) {
  size_t sent = 0;
  while (sent < outbox.bytes.size()) {
    const size_t piece = std::min(outbox.bytes.size() - sent, kPieceBytes);
    const ssize_t n = send(*outbox.socket, outbox.bytes.data() + sent, piece, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const bool later = errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM;
      // If the peer is gone, Receive notices it.
      if (!later) sent = outbox.bytes.size();
      break;
    }
    sent += static_cast<size_t>(n);
  }
  outbox.bytes.erase(0, sent);
}

std::vector<ControlLinks::Event> ControlLinks::Await(std::optional<double> seconds) { return Read(seconds, true); }

std::vector<ControlLinks::Event> ControlLinks::Look() { return Read(0, false); }

// is_woken: Wake ends the wait, and is forgotten then.
std::vector<ControlLinks::Event> ControlLinks::Read(std::optional<double> seconds, bool is_woken) {
  awaited_.clear();
  {
    const MutexLock lock(mutex_);
    for (size_t rank = 0; rank < in_.size(); ++rank) {
      const short events = static_cast<short>(out_[rank].bytes.empty() ? POLLIN : POLLIN | POLLOUT);
      awaited_.push_back({in_[rank].socket.value_or(UniqueFd::kNone), events, 0});
      awaited_.push_back({in_[rank].death.value_or(UniqueFd::kNone), POLLIN, 0});
    }
  }
  awaited_.push_back({is_woken ? wake_.get() : UniqueFd::kNone, POLLIN, 0});
  std::vector<Event> events;
  if (poll(awaited_.data(), awaited_.size(), PollMs(seconds)) <= 0) return events;
  if (awaited_.back().revents != 0) ForgetWakes();
  for (size_t rank = 0; rank < in_.size(); ++rank) {
    const pollfd &socket = awaited_[2 * rank], &death = awaited_[2 * rank + 1];
    if ((socket.revents & POLLOUT) != 0) {
      const MutexLock lock(mutex_);
      Flush(out_[rank]);
    }
    const bool dead = death.revents != 0;
    if (dead || (socket.revents & ~POLLOUT) != 0) Receive(static_cast<int>(rank), dead, &events);
  }
  return events;
}

void ControlLinks::Receive(int rank, bool dead, std::vector<Event>* events) {
  Inbox& inbox = in_[rank];
  std::array<char, kPieceBytes> buffer;
  bool closed = false, failed = false;
  size_t received = 0;
  // A peer that sends without end has to wait for the others' turns. So the unread bytes here never grow beyond the
  // message that they are a part of. A peer that is gone sends no more. A packet socket reports an error before the
  // data in it, for example of a peer that ended with unread messages. It reports the error only once, and the peer's
  // data comes after it.
  while (dead || failed || received < kTurnBytes) {
    const ssize_t n = recv(*inbox.socket, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n > 0) {
      inbox.bytes.append(buffer.data(), static_cast<size_t>(n));
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
  const Status broken = TakeMessages(rank, inbox, events);
  if (!closed && broken.ok()) return;
  inbox = {};
  {
    const MutexLock lock(mutex_);
    out_[rank] = {};
  }
  events->push_back({rank, "", true, broken});
}

Status ControlLinks::TakeMessages(int rank, Inbox& inbox, std::vector<Event>* events) {
  const size_t seal_bytes = inbox.seal ? size_t{Seal::kBytes} : 0;
  Status broken;
  size_t done = 0;
  while (inbox.bytes.size() - done >= kHeaderBytes) {
    const size_t length = LengthOf(std::string_view(inbox.bytes).substr(done));
    if (length < seal_bytes || length > seal_bytes + kMaxMessageBytes) {
      broken = DataLoss(StrCat("rank ", rank, " announces a message of ", length, " bytes on its link, wanted ",
                               seal_bytes, " to ", seal_bytes + kMaxMessageBytes));
      break;
    }
    if (inbox.bytes.size() - done - kHeaderBytes < length) break;
    std::string_view message = std::string_view(inbox.bytes).substr(done + kHeaderBytes, length);
    if (inbox.seal) {
      const auto got = inbox.seal->Open(message.data(), static_cast<int64_t>(length - seal_bytes));
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
  inbox.bytes.erase(0, done);
  return broken;
}

bool ControlLinks::Push(double seconds) {
  const Deadline deadline = Deadline::After(seconds);
  while (true) {
    std::vector<pollfd> entries;
    {
      const MutexLock lock(mutex_);
      for (Outbox& outbox : out_) {
        if (!outbox.bytes.empty()) Flush(outbox);
        if (!outbox.bytes.empty()) entries.push_back({*outbox.socket, POLLOUT, 0});
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
  const MutexLock lock(mutex_);
  return std::all_of(out_.begin(), out_.end(), [](const Outbox& outbox) { return outbox.bytes.empty(); });
}

}  // namespace lockstep
