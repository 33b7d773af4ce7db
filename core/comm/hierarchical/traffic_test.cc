// Promise of this file (algorithms.md): messages, bytes, connections and memory of a rank are the page's functions of
// hosts and ranks.

#include <dirent.h>
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "core/base/seal.h"
#include "core/base/strings.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/gloo/calls.h"
#include "core/comm/gloo/streams.h"
#include "core/comm/shm/layout.h"
#include "core/telemetry/lane_counters.h"
#include "core/testing/job.h"
#include "core/testing/ranks.h"

// Messages, bytes, connections and memory of jobs on several hosts, as functions of hosts and ranks. docs/algorithms.md
// has the formulas; a change of one changes both.
//
// Letters: H hosts with L ranks each, R = H L ranks, N the bytes of one rank's tensor.

namespace lockstep::hierarchical {
namespace {

constexpr int64_t kKiB = 1 << 10, kMiB = 1 << 20;
// The page's numbers, and the code's.
constexpr int64_t kSealBytes = 32, kHeadBytes = 32;
constexpr int64_t kFirstBytes = 512 * kKiB - kHeadBytes;  // the part of a contribution beside the head
constexpr int64_t kPieceBytes = kMiB;
static_assert(Seal::kBytes == kSealBytes);
static_assert(sizeof(gloo::Calls::Head) == kHeadBytes);
static_assert(gloo::Calls::kMostBytes == kFirstBytes);
// Gloo announces each message with as many bytes, twice, and the receiver its memory for it.
constexpr int64_t kAnnouncementBytes = 48;

// The messages between one rank and the ranks of other hosts, by the page's formulas. Ranks follow their hosts: rank r
// is the (r mod L)-th one of host r / L.
class Traffic {
 public:
  Traffic(int hosts, int ranks, int rank) : hosts_(hosts), ranks_(ranks), rank_(rank) {}

  void AllReduce(int64_t bytes) {
    const bool small = bytes <= 16 * kKiB;
    if (ranks_ == 1) return ReduceOnRail(bytes);
    if (!small) Agree(1);
    if (!small || leads()) ReduceOnRail(small ? bytes : bytes / ranks_);
  }
  void ReduceScatter(int64_t bytes) {
    Agree(1);
    if (!leads()) return;
    const int64_t range = bytes / hosts_;
    if (range <= kFirstBytes) return Exchange(range);
    Exchange(0);
    FromMemory(range);
  }
  // The root is on the last host.
  void Broadcast(int64_t bytes) {
    Agree(1);
    if (!leads()) return;
    const bool sends = host() == hosts_ - 1, large = bytes > kFirstBytes;
    Exchange(0);
    if (!large && sends) sent_bytes += (hosts_ - 1) * bytes;
    if (!large && !sends) received_bytes += bytes;
    const int64_t share = (bytes + hosts_ - 2) / (hosts_ - 1);
    for (int other = 0; large && other < hosts_ - 1; ++other) {
      const int64_t part = std::min(share, bytes - other * share);
      if (sends) Send(part, 1);
      if (!sends) Receive(part);
      if (other == host()) Send(part, hosts_ - 2);
    }
  }
  void AllGather(int64_t bytes) {
    Agree(1);
    if (leads()) Exchange(bytes / hosts_);
  }
  void AllToAll(int64_t bytes) {
    Agree(hosts_ * ranks_);
    Exchange(bytes / hosts_);
  }
  void Barrier() { ranks_ == 1 ? Exchange(0) : Agree(1); }

  int64_t sent = 0, sent_bytes = 0, received = 0, received_bytes = 0;

 private:
  int host() const { return rank_ / ranks_; }
  bool leads() const { return rank_ % ranks_ == 0; }

  // The leaders tell each other some numbers of each rank. With one rank on each host they do not.
  void Agree(int64_t numbers) {
    if (ranks_ > 1 && leads()) Exchange(8 * numbers * ranks_);
  }
  void ReduceOnRail(int64_t bytes) {
    if ((hosts_ - 1) * bytes <= 64 * kKiB) return Exchange(bytes);
    const int64_t share = bytes / hosts_;
    if (share <= kFirstBytes) {
      Exchange(share);
      return Exchange(share);
    }
    Exchange(0);
    FromMemory(share);
    FromMemory(share);
  }
  // Each sends as many bytes to each other host: beside the head, and what does not fit in a second message.
  void Exchange(int64_t bytes) {
    const int64_t more = bytes - std::min(bytes, kFirstBytes);
    for (int64_t* const messages : {&sent, &received}) *messages += (hosts_ - 1) * (more > 0 ? 2 : 1);
    for (int64_t* const total : {&sent_bytes, &received_bytes})
      *total += (hosts_ - 1) * (kSealBytes + kHeadBytes + bytes);
  }
  void FromMemory(int64_t bytes) {
    Send(bytes, hosts_ - 1);
    for (int other = 0; other < hosts_ - 1; ++other) Receive(bytes);
  }
  void Send(int64_t bytes, int times) {
    sent += times * ((bytes + kPieceBytes - 1) / kPieceBytes);
    sent_bytes += times * bytes;
  }
  void Receive(int64_t bytes) {
    received += (bytes + kPieceBytes - 1) / kPieceBytes;
    received_bytes += bytes;
  }

  const int hosts_, ranks_, rank_;
};

// Makes calls with tensors of N bytes, and compares what each has added to the rank's counters.
class Calls {
 public:
  Calls(Communicator& communicator, int hosts, int64_t bytes)
      : c_(communicator),
        counters_(*communicator.counters()),
        hosts_(hosts),
        bytes_(bytes),
        in_(static_cast<size_t>(bytes / 4), 1),
        out_(static_cast<size_t>(bytes / 4)) {}

  // Returns "" or the differences.
  std::string Run() {
    const int size = c_.size();
    const int64_t count = bytes_ / 4;
    const std::vector<int64_t> parts(size, count / size);
    const Allocate memory = [&](auto) -> Result<void*> { return static_cast<void*>(out_.data()); };
    Check("allreduce", &Traffic::AllReduce,
          c_.AllReduce("sum", ReduceOp::kSum, DType::kFloat32, count, in_.data(), out_.data()));
    Check("reducescatter", &Traffic::ReduceScatter,
          c_.ReduceScatter("ranges", ReduceOp::kSum, DType::kFloat32, parts, in_.data(), out_.data()));
    Check("broadcast", &Traffic::Broadcast, c_.Broadcast("weights", size - 1, bytes_, in_.data()));
    Check("allgather", &Traffic::AllGather,
          c_.AllGatherV("items", {DType::kFloat32, 1}, count / size, in_.data(), memory));
    Check("alltoall", &Traffic::AllToAll, c_.AllToAllV("rows", {DType::kFloat32, 1}, parts, in_.data(), memory));
    Check(
        "barrier", [](Traffic& traffic, int64_t) { traffic.Barrier(); }, c_.Barrier("end"));
    return errors_;
  }

 private:
  template <typename Formula>
  void Check(const char* call, const Formula& formula, const Status& status) {
    Traffic wanted(hosts_, c_.size() / hosts_, c_.rank());
    std::invoke(formula, wanted, bytes_);
    if (!status.ok()) errors_ += status.ToString();
    Compare(call, "messages sent", counters_.sent_messages(), wanted.sent, sent_);
    Compare(call, "bytes sent", counters_.sent_message_bytes(), wanted.sent_bytes, sent_bytes_);
    Compare(call, "messages received", counters_.received_messages(), wanted.received, received_);
    Compare(call, "bytes received", counters_.received_message_bytes(), wanted.received_bytes, received_bytes_);
  }
  void Compare(const char* call, const char* what, int64_t now, int64_t wanted, int64_t& before) {
    const int64_t got = now - before;
    before = now;
    if (got == wanted) return;
    errors_ +=
        StrCat("rank ", c_.rank(), ": ", call, " of ", bytes_, " bytes: ", got, " ", what, ", wanted ", wanted, "\n");
  }

  Communicator& c_;
  const LaneCounters& counters_;
  const int hosts_;
  const int64_t bytes_;
  std::vector<float> in_, out_;
  std::string errors_;
  int64_t sent_ = counters_.sent_messages(), sent_bytes_ = counters_.sent_message_bytes();
  int64_t received_ = counters_.received_messages(), received_bytes_ = counters_.received_message_bytes();
};

struct Size {
  int hosts, ranks;
};
void PrintTo(const Size& size, std::ostream* stream) { *stream << size.hosts << "x" << size.ranks; }
std::string SizeName(const ::testing::TestParamInfo<Size>& info) {
  return StrCat(info.param.hosts, "_hosts_of_", info.param.ranks);
}

class TrafficTest : public ::testing::TestWithParam<Size> {
 protected:
  JobShape shape() const { return OnHosts(GetParam().hosts, GetParam().ranks); }
};

// The sizes are multiples of 64 bytes for each rank, so that all shares are equal. They cross each limit of the page:
// data with the first message, by messages, through the leaders, on rails. The largest one goes by memory, in pieces.
TEST_P(TrafficTest, MessagesAndBytesAreThoseOfTheFormulas) {
  const int hosts = GetParam().hosts;
  ExpectAllWell(shape(), [&](Communicator& c) -> std::string {
    std::string errors;
    for (const int64_t bytes : {4 * kKiB, 16 * kKiB, 64 * kKiB, kMiB}) errors += Calls(c, hosts, bytes).Run();
    if (c.size() <= 8) errors += Calls(c, hosts, c.size() * 3 * kMiB / 2).Run();
    return errors;
  });
}

// The connected sockets of this process.
struct Sockets {
  std::vector<int> across;  // on a rail
  int to_rendezvous = 0;    // TCP connections to the port of the rendezvous, or from there
  int local = 0;            // inside of the host

  explicit Sockets(int rendezvous_port) {
    DIR* const folder = opendir("/proc/self/fd");
    while (const dirent* entry = readdir(folder)) {
      const int fd = std::atoi(entry->d_name);
      sockaddr_storage own = {}, peer = {};
      socklen_t length = sizeof(own), peer_length = sizeof(peer);
      if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0) continue;
      if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) != 0) continue;
      if (own.ss_family == AF_UNIX) ++local;
      if (own.ss_family == AF_UNIX) continue;
      const bool is_rendezvous = Port(own) == rendezvous_port || Port(peer) == rendezvous_port;
      is_rendezvous ? void(++to_rendezvous) : across.push_back(fd);
    }
    closedir(folder);
  }

  // The kernel's counts of bytes on the rail: what the peers' kernels have received, and what arrived here.
  std::pair<int64_t, int64_t> Bytes() const {
    int64_t sent = 0, received = 0;
    for (const int fd : across) {
      tcp_info info = {};
      socklen_t length = sizeof(info);
      getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length);
      sent += static_cast<int64_t>(info.tcpi_bytes_acked);
      received += static_cast<int64_t>(info.tcpi_bytes_received);
    }
    return {sent, received};
  }

 private:
  // Both versions of the Internet Protocol have the port at the same place.
  static int Port(const sockaddr_storage& address) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
};

int PortOf(const ContextOptions& options) {
  return std::atoi(options.rendezvous.c_str() + options.rendezvous.rfind(':') + 1);
}

// Waits until this rank's rail has been quiet for a moment.
std::pair<int64_t, int64_t> QuietBytes(const Sockets& sockets) {
  auto bytes = sockets.Bytes();
  for (int quiet = 0; quiet < 4; ++quiet) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (const auto now = sockets.Bytes(); now != bytes) {
      bytes = now;
      quiet = -1;
    }
  }
  return bytes;
}

// The counters are right: the kernel has sent these bytes, and Gloo's announcements.
TEST_P(TrafficTest, TheKernelHasSentTheCountedBytes) {
  const testing::Shared<std::atomic<int>> begun(0), quiet(0), ended(0), read(0);
  Job job(shape(), [&](const ContextOptions& options) -> std::string {
    return PlayPart(options, [&](Communicator& c) -> std::string {
      const Sockets sockets(PortOf(options));
      const auto all_at = [&](std::atomic<int>& place) {
        ++place;
        return testing::AwaitCount(place, c.size());
      };
      if (!all_at(*begun)) return "not all ranks came";
      const auto before = QuietBytes(sockets);
      const LaneCounters& counters = *c.counters();
      const int64_t sent = counters.sent_messages(), received = counters.received_messages();
      const int64_t sent_bytes = counters.sent_message_bytes(), received_bytes = counters.received_message_bytes();
      if (!all_at(*quiet)) return "not all ranks came again";
      const std::string errors = Calls(c, GetParam().hosts, kMiB).Run();
      if (!errors.empty()) return errors;
      if (!all_at(*ended)) return "not all ranks have ended";
      const auto after = QuietBytes(sockets);
      // A rank that leaves closes its connections.
      if (!all_at(*read)) return "not all ranks have read";
      const int64_t messages = counters.sent_messages() - sent, arrived = counters.received_messages() - received;
      const int64_t wanted_sent =
          counters.sent_message_bytes() - sent_bytes + kAnnouncementBytes * (2 * messages + arrived);
      const int64_t wanted_received =
          counters.received_message_bytes() - received_bytes + kAnnouncementBytes * (2 * arrived + messages);
      const int64_t got_sent = after.first - before.first, got_received = after.second - before.second;
      if (got_sent == wanted_sent && got_received == wanted_received) return "";
      return StrCat("rank ", c.rank(), ": ", got_sent, " bytes sent, ", got_received, " received, wanted ", wanted_sent,
                    " and ", wanted_received, "\n");
    });
  });
  job.ExpectSurvivorsWell();
}

// Returns the bytes that this process maps of the shared memory.
int64_t SharedMemoryBytes() {
  std::ifstream maps("/proc/self/maps");
  int64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:lockstep") == std::string::npos) continue;
    char* end = nullptr;
    const uint64_t begin = std::strtoull(line.c_str(), &end, 16);
    bytes += static_cast<int64_t>(std::strtoull(end + 1, nullptr, 16) - begin);
  }
  return bytes;
}

TEST_P(TrafficTest, ConnectionsAndSharedMemoryAreThoseOfTheFormulas) {
  const auto [hosts, ranks] = GetParam();
  Job job(shape(), [hosts = hosts, ranks = ranks](const ContextOptions& options) -> std::string {
    const int inherited = Sockets(PortOf(options)).local;
    return PlayPart(options, [=](Communicator& c) -> std::string {
      const Sockets sockets(PortOf(options));
      // Rank 0 watches all, and has a link to each; the others have both to rank 0 only.
      const int wanted[] = {hosts - 1, c.rank() == 0 ? 2 * (c.size() - 1) : 2, ranks - 1};
      const int got[] = {static_cast<int>(sockets.across.size()), sockets.to_rendezvous, sockets.local - inherited};
      std::string errors;
      for (int i = 0; i < 3; ++i) {
        if (got[i] != wanted[i]) errors += StrCat("sockets of kind ", i, ": ", got[i], ", wanted ", wanted[i], "; ");
      }
      const int64_t bytes = ranks * (4 * kKiB + 32 * kKiB + 1536 * kKiB + options.shared_bytes_per_rank);
      if (SharedMemoryBytes() != bytes) errors += StrCat("shared: ", SharedMemoryBytes(), " bytes, wanted ", bytes);
      // No rank may leave while another one counts.
      const Status status = c.Barrier("counted");
      return status.ok() ? errors : status.ToString();
    });
  });
  job.ExpectSurvivorsWell();
}

INSTANTIATE_TEST_SUITE_P(Sizes, TrafficTest,
                         ::testing::Values(Size{2, 1}, Size{2, 2}, Size{4, 1}, Size{4, 2}, Size{4, 4}, Size{16, 1},
                                           Size{16, 4}),
                         SizeName);

// Makes malloc take new pages for large memory, as in a new process. A fork of a test that has freed much would get
// used pages again, or give some back, which hides growth.
void TakeNewPages() {
  mallopt(M_MMAP_THRESHOLD, 128 << 10);
  malloc_trim(0);
}

// Returns the private memory that this process uses. The numbers of /proc/self/status may be 64 pages off for each CPU.
int64_t PrivateBytes() {
  std::ifstream pages("/proc/self/smaps_rollup");
  for (std::string line; std::getline(pages, line);) {
    if (line.starts_with("Anonymous:")) return std::atoll(line.c_str() + 10) * kKiB;
  }
  return 0;
}

// Four windows of 512 KiB for each other host. A job whose messages are small does not pay for them.
TEST(MemoryOfARankTest, WindowsTakeMemoryWhenMessagesFillThem) {
  if (kSanitized) GTEST_SKIP() << "sanitizers take memory of their own";
  const int hosts = 8;
  const testing::Shared<std::atomic<int>> read(0);
  Job job(OnHosts(hosts, 1), [&](const ContextOptions& options) -> std::string {
    TakeNewPages();
    std::vector<char> in(kFirstBytes, 1), out(hosts * kFirstBytes, 1);
    const int64_t before = PrivateBytes();
    return PlayPart(options, [&](Communicator& c) -> std::string {
      for (int i = 0; i < 2; ++i) {
        if (const Status status = c.Barrier("small"); !status.ok()) return status.ToString();
      }
      const int64_t small = PrivateBytes() - before;
      // Large messages of others arrive in this rank's memory at any time.
      ++*read;
      if (!testing::AwaitCount(*read, hosts)) return "not all ranks have read";
      for (int i = 0; i < 2; ++i) {
        const Status status = c.AllGatherV("large", {DType::kUInt8, 1}, kFirstBytes, in.data(),
                                           [&](auto) -> Result<void*> { return static_cast<void*>(out.data()); });
        if (!status.ok()) return status.ToString();
      }
      const int64_t large = PrivateBytes() - before, wanted = 2 * kMiB * (hosts - 1);
      std::string errors;
      if (small > kMiB) errors += StrCat("rank ", c.rank(), ": ", small, " bytes with small messages; ");
      if (large < wanted || large > wanted + kMiB)
        errors += StrCat("rank ", c.rank(), ": ", large, " bytes with large messages, wanted ", wanted);
      return errors;
    });
  });
  job.ExpectSurvivorsWell();
}

// A reduction by memory keeps H pieces of a share: all N bytes of a rail, if a share has at most 17 pieces of 1 MiB.
TEST(MemoryOfARankTest, LargeReductionsKeepThePiecesThatTheyReduce) {
  if (kSanitized) GTEST_SKIP() << "sanitizers take memory of their own";
  const int64_t bytes = 16 * kMiB;
  Job job(OnHosts(4, 1), [=](const ContextOptions& options) -> std::string {
    TakeNewPages();
    std::vector<float> values(bytes / 4, 1);
    return PlayPart(options, [&](Communicator& c) -> std::string {
      const int64_t before = PrivateBytes();
      const Status status =
          c.AllReduce("sum", ReduceOp::kSum, DType::kFloat32, bytes / 4, values.data(), values.data());
      const int64_t more = PrivateBytes() - before;
      if (!status.ok()) return status.ToString();
      return more >= bytes && more <= bytes + kMiB ? "" : StrCat(more, " bytes more, wanted ", bytes);
    });
  });
  job.ExpectSurvivorsWell();
}

}  // namespace
}  // namespace lockstep::hierarchical
