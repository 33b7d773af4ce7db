#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/unique_fd.h"

namespace lockstep::testing {

// Strangers that connect to a local port and drop the connection, without a pause, from when it is made until it is
// destroyed, or a bound has passed that is there against hangs alone. What has ended while `goes_on()` was not ended by
// the end of the flood.
class Flood {
 public:
  // address: "127.0.0.1:port".
  explicit Flood(const std::string& address, int callers = 4, double most_s = 20) : end_(Deadline::After(most_s)) {
    to_.sin_family = AF_INET;
    to_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to_.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    for (int i = 0; i < callers; ++i) threads_.emplace_back([this] { Run(); });
  }
  ~Flood() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;

  bool goes_on() const { return !end_.Passed(); }
  // How many connections there have been.
  int64_t calls() const { return calls_; }

 private:
  // Never waits for the port's queue, which is full most of the time. Ended by a reset, a connection leaves no port
  // behind that it waits for.
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
  sockaddr_in to_ = {};
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> calls_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::testing
