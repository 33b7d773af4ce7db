#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace lockstep::testing {

// Returns "127.0.0.1:port" as the system's type.
inline sockaddr_in LocalPort(const std::string& address) {
  sockaddr_in local = {};
  local.sin_family = AF_INET;
  local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  local.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  return local;
}

// Unauthenticated peers that connect to a local port and drop the connection, without a pause, from construction until
// destruction. A time limit protects against hangs. If a call ends while `goes_on()` is true, the end of the flood did
// not end it.
class Flood {
 public:
  // address: "127.0.0.1:port".
  explicit Flood(const std::string& address, int callers = 4, double most_s = 20)
      : end_(Deadline::After(most_s)), to_(LocalPort(address)) {
    for (int i = 0; i < callers; ++i) threads_.emplace_back([this] { Run(); });
  }
  ~Flood() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;

  bool goes_on() const { return !end_.Passed(); }
  // Returns the number of connections made.
  int64_t calls() const { return calls_; }

 private:
  // Never waits for the port's queue, which is full most of the time. Each connection ends by a reset, so it leaves no
  // local port waiting.
  void Run() {
    while (!stop_ && goes_on()) {
      const UniqueFd caller(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      const linger at_once = {.l_onoff = 1, .l_linger = 0};
      setsockopt(caller.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
      (void)connect(caller.get(), reinterpret_cast<const sockaddr*>(&to_), sizeof(to_));
      ++calls_;
    }
  }

  const Deadline end_;
  const sockaddr_in to_;
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> calls_ = 0;
  std::vector<std::thread> threads_;
};

// Callers that wait in a local port's queue and send nothing. The code under test greets them in turns, and asks its
// `ended` at each turn; pass `Turn` as `ended`.
class Queue {
 public:
  Queue(const std::string& address, int callers) {
    const sockaddr_in to = LocalPort(address);
    for (int i = 0; i < callers; ++i) {
      sockets_.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (connect(sockets_.back().get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) sockets_.pop_back();
    }
  }

  // Returns CANCELLED when all callers have received something.
  Status Turn() {
    int heard = 0;
    for (const UniqueFd& caller : sockets_) {
      pollfd entry = {caller.get(), POLLIN, 0};
      heard += poll(&entry, 1, 0);
    }
    most_a_turn_ = std::max(most_a_turn_, heard - heard_);
    heard_ = heard;
    return heard_ == size() ? Cancelled("all were greeted") : OkStatus();
  }
  int size() const { return static_cast<int>(sockets_.size()); }
  // Returns the largest number of callers greeted between two turns.
  int most_a_turn() const { return most_a_turn_; }

 private:
  std::vector<UniqueFd> sockets_;
  int heard_ = 0, most_a_turn_ = 0;
};

// Counts the turns of code that waits for at most `seconds`, if they begin after that time. Pass `Turn` as its `ended`;
// the first call comes when the code's own time already runs.
class LateTurns {
 public:
  explicit LateTurns(double seconds) : seconds_(seconds) {}

  Status Turn() {
    if (!end_) end_ = Deadline::After(seconds_);
    count_ += end_->Passed() ? 1 : 0;
    return OkStatus();
  }
  int count() const { return count_; }

 private:
  const double seconds_;
  std::optional<Deadline> end_;
  int count_ = 0;
};

}  // namespace lockstep::testing
