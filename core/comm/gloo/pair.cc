#include "core/comm/gloo/pair.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

// A thread that closes a connection waits, with the pair's mutex, for Gloo's thread to end its turn. So Gloo's thread
// never waits for the mutex, but tries again later.

namespace lockstep::gloo {
namespace {

namespace tcp = ::gloo::transport::tcp;

// Gloo's own timeouts are not used (streams.cc).
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);

void Fail(const ::gloo::WeakNonOwningPtr<tcp::UnboundBuffer>& buffer, const std::exception_ptr& why) {
  const ::gloo::NonOwningPtr<tcp::UnboundBuffer> alive(buffer);
  if (alive) static_cast<Memory*>(alive.operator->())->Fail(why);
}

}  // namespace

Pair::Pair(tcp::Context& context, tcp::Device& device, int peer) : tcp::Pair(&context, &device, peer, kForever) {}

// This runs before the object's own members are destroyed: until the connection is closed Gloo's thread may call it.
Pair::~Pair() {
  const std::lock_guard lock(m_);
  if (state_ != CLOSED) changeState(CLOSED);
}

// Gloo's listening port is closed without ever accepting a connection.
void Pair::Adopt(UniqueFd socket) {
  const std::lock_guard lock(m_);
  peer_ = tcp::Address::fromPeerName(socket.get());
  device_->unregisterDescriptor(fd_, this);
  ::close(fd_);
  // In this state, and without a descriptor, there is nothing to close.
  fd_ = UniqueFd::kNone;
  device_->registerDescriptor(socket.get(), EPOLLIN, this);
  fd_ = socket.Release();
  not_in_forks_.emplace(std::vector<int>{fd_});
  changeState(CONNECTED);
}

// Only the connection's end is still reported, and only once.
void Pair::Rest() {
  const std::lock_guard lock(m_);
  if (state_ == CONNECTED) device_->registerDescriptor(fd_, EPOLLET, this);
}

bool Pair::Acknowledged() {
  const std::lock_guard lock(m_);
  int bytes = 0;
  if (state_ != CONNECTED) return true;
  return tx_.empty() && (ioctl(fd_, SIOCOUTQ, &bytes) != 0 || bytes == 0);
}

void Pair::handleEvents(int events) {
  {
    const std::unique_lock lock(m_, std::try_to_lock);
    if (!lock || state_ != CONNECTED) return;
  }
  std::string words;
  try {
    tcp::Pair::handleEvents(events);
    return;  // from here on the object may be destroyed
  } catch (const std::exception& error) {
    words = error.what();
  }
  const std::unique_lock lock(m_, std::try_to_lock);
  if (lock && ex_ == nullptr && state_ == CONNECTED) signalException(words);
}

// No buffer can be written to without having been prepared.
bool Pair::read() {
  const bool more = tcp::Pair::read();
  const bool begun = state_ == CONNECTED && rx_.nread >= sizeof(rx_.preamble);
  if (!more && begun && rx_.getOpcode() == tcp::Op::SEND_BUFFER) signalException("bytes for no buffer of ours");
  return more;
}

// A descriptor's number may belong to another file as soon as it is closed.
void Pair::changeState(state next) noexcept {
  if (next == CLOSED) not_in_forks_.reset();
  tcp::Pair::changeState(next);
  if (next != CLOSED || ex_ == nullptr) return;
  Fail(rx_.ubuf, ex_);
  for (const tcp::Op& op : tx_) Fail(op.ubuf, ex_);
}

}  // namespace lockstep::gloo
