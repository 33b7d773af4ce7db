#include "core/device/check/exchanges.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/base/unique_fd.h"
#include "core/comm/options.h"
#include "core/comm/rendezvous/rendezvous.h"
#include "core/comm/shm/shm_communicator.h"
#include "core/device/check/session.h"
#include "core/device/comm/create_device_communicator.h"
#include "core/device/load.h"

// The ranks share memory as the ranks of a host do. They do not join by core/comm/job, because that links Gloo, and the
// program has to run on machines without its libraries.

namespace lockstep::device {
namespace {

// How long NCCL and the ranks may take, and a whole process.
constexpr double kTimeout_s = 20, kDeadline_s = 60;

using Floats = std::vector<float>;

// Numbers whose sums depend on the order of addition.
Floats Numbers(int rank, int64_t count) {
  Floats numbers(count);
  uint32_t state = 12345U + 977U * static_cast<uint32_t>(rank);
  for (float& number : numbers) {
    state = state * 1664525U + 1013904223U;
    number = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-20F;
  }
  return numbers;
}

// One rank's collectives on the device, each compared with the host's.
class Rank {
 public:
  Rank(const Library& library, Communicator& host, DeviceCommunicator& devices)
      : session_(library), host_(host), devices_(devices), size_(devices.size()) {}

  // Runs all of them; `is_native`: NCCL adds in an order of its own, which one rank has not.
  Status Run() {
    for (const int64_t count : {int64_t{1}, int64_t{1000}, int64_t{100'003}}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax}) {
        LOCKSTEP_RETURN_IF_ERROR(Same(
            "allreduce", count, count,
            [&](const float* in, float* out) {
              return devices_.AllReduce("x", op, DType::kFloat32, count, in, out, session_.stream());
            },
            [&](const float* in, float* out) { return host_.AllReduce("x", op, DType::kFloat32, count, in, out); }));
      }
      const std::vector<int64_t> counts(size_, count);
      LOCKSTEP_RETURN_IF_ERROR(Same(
          "reducescatter", count * size_, count,
          [&](const float* in, float* out) {
            return devices_.ReduceScatter("x", ReduceOp::kSum, DType::kFloat32, counts, in, out, session_.stream());
          },
          [&](const float* in, float* out) {
            return host_.ReduceScatter("x", ReduceOp::kSum, DType::kFloat32, counts, in, out);
          }));
      const Item item = {DType::kFloat32, 1};
      LOCKSTEP_RETURN_IF_ERROR(Same(
          "allgather", count, count * size_,
          [&](const float* in, float* out) {
            return devices_.AllGatherV("x", item, counts, in, out, session_.stream());
          },
          [&](const float* in, float* out) {
            return host_.AllGatherV("x", item, count, in,
                                    [out](std::span<const int64_t>) -> Result<void*> { return out; });
          }));
      LOCKSTEP_RETURN_IF_ERROR(Same(
          "alltoall", count * size_, count * size_,
          [&](const float* in, float* out) {
            return devices_.AllToAllV("x", item, counts, counts, in, out, session_.stream());
          },
          [&](const float* in, float* out) {
            return host_.AllToAllV("x", item, counts, in,
                                   [out](std::span<const int64_t>) -> Result<void*> { return out; });
          }));
      LOCKSTEP_RETURN_IF_ERROR(Broadcasts(count));
    }
    return OkStatus();
  }

 private:
  template <typename OnDevice, typename OnHost>
  Status Same(std::string_view what, int64_t in_count, int64_t out_count, const OnDevice& on_device,
              const OnHost& on_host) {
    const Floats in = Numbers(devices_.rank(), in_count);
    Floats wanted(out_count);
    DeviceMemory from(session_, in_count * 4), to(session_, out_count * 4);
    from.Set(in.data());
    LOCKSTEP_RETURN_IF_ERROR(session_.status());
    const Result<Ticket> ticket =
        on_device(reinterpret_cast<const float*>(from.data()), reinterpret_cast<float*>(to.data()));
    LOCKSTEP_RETURN_IF_ERROR(ticket.status());
    LOCKSTEP_RETURN_IF_ERROR(ticket->Wait());
    devices_.ReleaseHost();
    LOCKSTEP_RETURN_IF_ERROR(on_host(in.data(), wanted.data()));
    return Compare(what, to.Get(), wanted);
  }

  Status Broadcasts(int64_t count) {
    const int root = size_ - 1;
    DeviceMemory data(session_, count * 4);
    data.Set(Numbers(devices_.rank(), count).data());
    const Result<Ticket> ticket = devices_.Broadcast("x", root, count * 4, data.data(), session_.stream());
    LOCKSTEP_RETURN_IF_ERROR(ticket.status());
    LOCKSTEP_RETURN_IF_ERROR(ticket->Wait());
    return Compare("broadcast", data.Get(), Numbers(root, count));
  }

  Status Compare(std::string_view what, const std::vector<char>& got, const Floats& wanted) {
    LOCKSTEP_RETURN_IF_ERROR(session_.status());
    for (size_t i = 0; i < wanted.size(); ++i) {
      float number;
      std::memcpy(&number, got.data() + 4 * i, 4);
      if (std::memcmp(&number, &wanted[i], 4) != 0) {
        return Internal(
            StrCat(what, " of ", wanted.size(), " numbers: number ", i, " is ", number, ", wanted ", wanted[i]));
      }
    }
    return OkStatus();
  }

  Session session_;
  Communicator& host_;
  DeviceCommunicator& devices_;
  const int size_;
};

struct Plan {
  std::string backend;
  int ranks;
  bool native_sums;
};

// Joins the ranks of a job by shared memory.
Result<std::unique_ptr<Communicator>> Join(const ContextOptions& options) {
  shm::Group group;
  group.index = options.rank;
  group.ranks.resize(options.size);
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  group.sockets = {""};
  if (options.size > 1) {
    LOCKSTEP_ASSIGN_OR_RETURN(group.mesh, shm::Mesh::Listen());
    LOCKSTEP_ASSIGN_OR_RETURN(RendezvousResult met, JoinRendezvous({.rank = options.rank,
                                                                    .size = options.size,
                                                                    .address = options.rendezvous,
                                                                    .secret = options.secret,
                                                                    .note = group.mesh->name(),
                                                                    .timeout_s = options.rendezvous_timeout_s,
                                                                    .listener = options.listener}));
    group.sockets = std::move(met.notes);
    group.key = met.key;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> made,
                            shm::ShmCommunicator::Create(options, std::move(group)));
  return made;
}

// A rank's part, in a process of its own: a device that has been used cannot be used in a fork. Sets the failure or the
// refusal.
void RunRank(const LibraryPlace& place, const NcclPlace& nccl, const Plan& plan, const ContextOptions& options,
             Exchange* exchange) {
  SetLibraryPlace(place);
  const auto library = LoadLibrary();
  const auto host = Join(options);
  for (const Status& status : {library.status(), host.status()}) {
    if (!status.ok()) exchange->failure = status.ToString();
  }
  if (!exchange->failure.empty()) return;
  CommOptions devices;
  devices.library = *library;
  devices.backend = plan.backend;
  devices.nccl = nccl;
  devices.native_sums = plan.native_sums;
  devices.stall_timeout_s = devices.start_timeout_s = kTimeout_s;
  const auto made = CreateDeviceCommunicator(devices, **host);
  if (!made.ok()) {
    exchange->refusal = made.status().ToString();
    return;
  }
  const Status status = Rank(**library, **host, **made).Run();
  if (!status.ok()) exchange->failure = status.ToString();
}

// Reads what a rank's process writes, until it ends or time is over.
std::string ReadAll(int fd, const Deadline& deadline) {
  std::string text;
  pollfd entry = {fd, POLLIN, 0};
  while (poll(&entry, 1, static_cast<int>(1e3 * deadline.Left()) + 1) > 0) {
    char part[4096];
    const ssize_t bytes = read(fd, part, sizeof(part));
    if (bytes <= 0) return text;
    text.append(part, static_cast<size_t>(bytes));
  }
  return "failure: no end within " + StrCat(kDeadline_s, " s");
}

// A process of a rank, which is killed if it does not end in time. It writes "failure: ..." or "refusal: ...".
struct Process {
  pid_t pid;
  UniqueFd report;
};

Process Start(const LibraryPlace& place, const NcclPlace& nccl, const Plan& plan, const ContextOptions& options) {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) return {-1, UniqueFd()};
  const pid_t pid = fork();
  if (pid == 0) {
    Exchange exchange;
    RunRank(place, nccl, plan, options, &exchange);
    std::string text;
    if (!exchange.refusal.empty()) text = "refusal: " + exchange.refusal;
    if (!exchange.failure.empty()) text = "failure: " + exchange.failure;
    const bool is_written = write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    _exit(is_written ? 0 : 1);
  }
  close(ends[1]);
  return {pid, UniqueFd(ends[0])};
}

void Take(std::string_view text, Exchange* exchange) {
  if (text.starts_with("refusal: ") && exchange->refusal.empty()) exchange->refusal = text.substr(9);
  if (text.starts_with("failure: ") && exchange->failure.empty()) exchange->failure = text.substr(9);
}

// Lets rank 0 listen at a free port of this machine: sets `rendezvous`, and returns the socket.
Result<UniqueFd> Listen(std::string* rendezvous) {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (!listener.valid() || bind(listener.get(), generic, length) != 0 || listen(listener.get(), SOMAXCONN) != 0 ||
      getsockname(listener.get(), generic, &length) != 0) {
    return ErrnoStatus("no port of this machine to listen at", errno);
  }
  *rendezvous = StrCat("127.0.0.1:", ntohs(address.sin_port));
  return listener;
}

Exchange Run(const LibraryPlace& place, const NcclPlace& nccl, const Plan& plan) {
  Exchange exchange = {StrCat(plan.backend, ", ", plan.ranks, plan.ranks == 1 ? " rank" : " ranks"), {}, {}};
  ContextOptions options;
  options.size = plan.ranks;
  options.device = plan.backend;
  options.secret = "device_check";
  options.rendezvous_timeout_s = options.stall_timeout_s = kTimeout_s;
  options.shared_bytes_per_rank = int64_t{64} << 20;
  const Result<UniqueFd> listener = Listen(&options.rendezvous);
  if (!listener.ok()) {
    exchange.failure = listener.status().ToString();
    return exchange;
  }
  std::vector<Process> processes;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    options.rank = rank;
    options.listener = rank == 0 ? std::optional(listener->get()) : std::nullopt;
    processes.push_back(Start(place, nccl, plan, options));
  }
  const Deadline deadline = Deadline::After(kDeadline_s);
  for (Process& process : processes) {
    if (process.pid <= 0) {
      exchange.failure = "no process for a rank";
      continue;
    }
    Take(ReadAll(process.report.get(), deadline), &exchange);
    if (deadline.Passed()) kill(process.pid, SIGKILL);
    int end = 0;
    waitpid(process.pid, &end, 0);
    if (end != 0) Take(StrCat("failure: a rank ended with status ", end), &exchange);
  }
  return exchange;
}

}  // namespace

std::vector<Exchange> CheckExchanges(const LibraryPlace& place, const NcclPlace& nccl) {
  std::vector<Exchange> exchanges;
  for (const Plan& plan : {Plan{"nccl", 1, true}, Plan{"nccl", 2, false}, Plan{"staged", 2, false}}) {
    exchanges.push_back(Run(place, nccl, plan));
  }
  return exchanges;
}

}  // namespace lockstep::device
