#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <net/ethernet.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/base/unique_fd.h"

// emulated_switch BITS_PER_S DELAY_US LOSS PID...
//
// An Ethernet switch between the networks of some processes (python/lockstep/testing/emulated_cluster.py), whose cables
// have a rate, a delay and losses. It is for kernels without netem and needs only TUN. Each of the networks gets an
// interface eth0, whose frames come from here and go to here:
//
//   eth0 of PID 0 --- rate, delay, loss --- switch --- rate, delay, loss --- eth0 of PID 1
//
// One thread per interface reads the frames that the interface sends. It keeps a frame until the time at which its last
// bit would be at the other end of both cables. Then it writes the frame to the interface with the address, or to all
// of them. As in a real switch, at most kMostQueuedBytes are kept; the senders notice the losses and slow down. The
// kernel delivers frames before it cuts them into packets (up to 64 KiB), which saves most of the work. A loss hits one
// such frame.
//
// Prints "ready" when the interfaces exist. Then reads lines "cut N" and "join N", which stop and resume all traffic of
// interface N, and answers each with "done". Ends at the end of its input.

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using Mac = std::array<unsigned char, ETH_ALEN>;

constexpr size_t kMostQueuedBytes = 16 << 20;
constexpr size_t kMostQueuedFrames = 8192;
// Stands before each frame and tells how the kernel has to cut it: struct virtio_net_hdr, whose header is not valid
// C++.
constexpr size_t kHeaderBytes = 10;
constexpr size_t kMostFrameBytes = kHeaderBytes + ETH_HLEN + 65536;

[[noreturn]] void Fail(const std::string& what) {
  std::perror(("emulated_switch: " + what).c_str());
  std::exit(1);
}

struct Cables {
  double bits_per_s;
  std::chrono::nanoseconds delay;
  double loss;
};

// An interface in another network.
struct Port {
  UniqueFd fd;
  Mac mac;
  std::atomic<bool> cut = false;
};

// Makes eth0 in the network of a process. A TUN device belongs to the network in which the opening thread is at that
// time.
void Open(const std::string& pid, Port& port) {
  const std::string path = "/proc/" + pid + "/ns/net";
  const UniqueFd network(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!network.valid() || setns(network.get(), CLONE_NEWNET) != 0) Fail(path);
  port.fd = UniqueFd(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!port.fd.valid()) Fail("/dev/net/tun");
  ifreq request = {};
  std::strncpy(request.ifr_name, "eth0", IFNAMSIZ - 1);
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  if (ioctl(port.fd.get(), TUNSETIFF, &request) != 0) Fail("TUNSETIFF");
  const int header_bytes = kHeaderBytes;
  if (ioctl(port.fd.get(), TUNSETVNETHDRSZ, &header_bytes) != 0) Fail("TUNSETVNETHDRSZ");
  if (ioctl(port.fd.get(), TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) != 0) Fail("TUNSETOFFLOAD");
  if (ioctl(port.fd.get(), SIOCGIFHWADDR, &request) != 0) Fail("SIOCGIFHWADDR");
  std::memcpy(port.mac.data(), request.ifr_hwaddr.sa_data, ETH_ALEN);
}

// The thread that handles one interface's outgoing frames.
class Sender {
 public:
  Sender(std::vector<std::unique_ptr<Port>>& ports, size_t from, const Cables& cables)
      : ports_(ports), from_(*ports[from]), cables_(cables), random_(from) {}

  [[noreturn]] void Run() {
    prctl(PR_SET_TIMERSLACK, 1);  // ns
    while (true) {
      Deliver();
      if (!Take()) Await();
    }
  }

 private:
  struct Frame {
    std::vector<char> bytes;
    Clock::time_point arrival;
  };

  // Writes the frames that are due.
  void Deliver() {
    while (!queue_.empty() && queue_.front().arrival <= Clock::now()) {
      Frame frame = std::move(queue_.front());
      queue_.pop_front();
      queued_bytes_ -= frame.bytes.size();
      Mac to;
      std::memcpy(to.data(), frame.bytes.data() + kHeaderBytes, ETH_ALEN);
      const bool for_all = to[0] & 1;
      for (const std::unique_ptr<Port>& port : ports_) {
        if (port.get() == &from_ || port->cut || from_.cut || (!for_all && port->mac != to)) continue;
        // An interface with a full queue loses the frame.
        (void)!write(port->fd.get(), frame.bytes.data(), frame.bytes.size());
      }
      spare_.push_back(std::move(frame.bytes));
    }
  }

  // Reads some frames; returns false after the last.
  bool Take() {
    for (int taken = 0; taken < 16; ++taken) {
      if (queue_.size() >= kMostQueuedFrames) return false;
      std::vector<char> bytes;
      if (!spare_.empty()) {
        bytes = std::move(spare_.back());
        spare_.pop_back();
      }
      bytes.resize(kMostFrameBytes);
      const ssize_t got = read(from_.fd.get(), bytes.data(), bytes.size());
      if (got < static_cast<ssize_t>(kHeaderBytes + ETH_HLEN)) {
        spare_.push_back(std::move(bytes));
        return false;
      }
      bytes.resize(static_cast<size_t>(got));
      if (IsLost(bytes.size())) {
        spare_.push_back(std::move(bytes));
        continue;
      }
      const double wire_s = static_cast<double>(bytes.size() - kHeaderBytes) * 8 / cables_.bits_per_s;
      free_at_ = std::max(free_at_, Clock::now()) +
                 std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(wire_s));
      queued_bytes_ += bytes.size();
      queue_.push_back({std::move(bytes), free_at_ + 2 * cables_.delay});
    }
    return true;
  }

  bool IsLost(size_t bytes) {
    if (from_.cut || queued_bytes_ + bytes > kMostQueuedBytes) return true;
    // A frame may be lost on either of two cables.
    const double arrives = (1 - cables_.loss) * (1 - cables_.loss);
    return cables_.loss > 0 && std::uniform_real_distribution<>()(random_) >= arrives;
  }

  // Waits until there is a frame to read or to deliver.
  void Await() {
    pollfd entry = {from_.fd.get(), POLLIN, 0};
    if (queue_.empty()) {
      ppoll(&entry, 1, nullptr, nullptr);
      return;
    }
    const auto wait = std::chrono::nanoseconds(queue_.front().arrival - Clock::now()).count();
    if (wait <= 0) return;
    const timespec timeout = {wait / 1'000'000'000, wait % 1'000'000'000};
    // A full queue reads nothing; it waits only for its time.
    ppoll(&entry, queue_.size() >= kMostQueuedFrames ? 0 : 1, &timeout, nullptr);
  }

  std::vector<std::unique_ptr<Port>>& ports_;
  Port& from_;
  const Cables cables_;
  std::mt19937 random_;
  std::deque<Frame> queue_;  // in the order of arrival
  size_t queued_bytes_ = 0;
  std::vector<std::vector<char>> spare_;
  Clock::time_point free_at_ = {};  // time at which the first cable has sent all its frames
};

int Main(int argc, char** argv) {
  if (argc < 6) {
    std::cerr << "usage: emulated_switch BITS_PER_S DELAY_US LOSS PID PID...\n";
    return 2;
  }
  const Cables cables = {std::atof(argv[1]), std::chrono::nanoseconds(static_cast<int64_t>(std::atof(argv[2]) * 1000)),
                         std::atof(argv[3])};
  std::vector<std::unique_ptr<Port>> ports;
  for (int i = 4; i < argc; ++i) {
    ports.push_back(std::make_unique<Port>());
    Open(argv[i], *ports.back());
  }
  for (size_t i = 0; i < ports.size(); ++i) {
    std::thread([&ports, i, cables] { Sender(ports, i, cables).Run(); }).detach();
  }
  std::cout << "ready" << std::endl;
  std::string word;
  size_t port = 0;
  while (std::cin >> word >> port && port < ports.size() && (word == "cut" || word == "join")) {
    ports[port]->cut = word == "cut";
    std::cout << "done" << std::endl;
  }
  // Exits without destructors, because the threads still use the objects.
  std::_Exit(0);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::Main(argc, argv); }
