#include "core/device/check/exchanges.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <bit>
#include <cerrno>
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
#include "core/device/check/process.h"
#include "core/device/check/session.h"
#include "core/device/comm/create_device_communicator.h"
#include "core/device/load.h"

// The ranks share memory as the ranks of a host do. They do not join by core/comm/job, because that links Gloo, and the
// program has to run on machines without its libraries.

namespace lockstep::device {
namespace {

// The part of a job's limit after which its ranks give up. They name the rank and the call, which a killed process
// cannot.
constexpr double kPatience = 0.6;

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

  // Runs all of them. NCCL's own sums have an order of their own, so they equal the host's only in a job of one rank.
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
      if (std::bit_cast<uint32_t>(number) != std::bit_cast<uint32_t>(wanted[i])) {
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

// Returns whether the error is NCCL's ncclInvalidUsage, by which it refuses two ranks on one device. Errors of NCCL
// end with its text of their code (NcclCommunicator::NcclError).
bool IsInvalidUsage(const Status& status, const nccl::Api& api) {
  const std::string text = StrCat(": ", api.GetErrorString(nccl::kInvalidUsage));
  return status.code() == StatusCode::kInternal && status.message().find(text) != std::string::npos;
}

// A rank's part. Reports lines of the kinds that are members of Exchange.
void RunRank(const LibraryPlace& place, const NcclPlace& nccl, const ExchangePlan& plan, const ContextOptions& options,
             const Report& report) {
  SetLibraryPlace(place);
  const auto library = LoadLibrary();
  if (!library.ok()) return report("failure", library.status().ToString());
  std::shared_ptr<const nccl::Api> api;
  if (plan.backend == "nccl") {
    bool is_installed = true;
    auto loaded = nccl::Load(nccl, &is_installed);
    if (!loaded.ok()) {
      return report(is_installed || !nccl.file.empty() ? "failure" : "missing", loaded.status().message());
    }
    api = *std::move(loaded);
    report("nccl", StrCat(api->version, " (", api->place, ")"));
  }
  const auto host = Join(options);
  if (!host.ok()) return report("failure", host.status().ToString());
  CommOptions devices;
  devices.library = *library;
  devices.backend = plan.backend;
  devices.nccl = nccl;
  devices.native_sums = plan.native_sums;
  devices.stall_timeout_s = devices.start_timeout_s = options.stall_timeout_s;
  const auto made = CreateDeviceCommunicator(devices, **host);
  if (!made.ok()) {
    const bool is_refusal = plan.may_be_refused && api != nullptr && IsInvalidUsage(made.status(), *api);
    return report(is_refusal ? "refusal" : "failure", made.status().ToString());
  }
  const Status status = Rank(**library, **host, **made).Run();
  if (!status.ok()) report("failure", status.ToString());
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

void Take(const Line& line, Exchange* exchange) {
  for (const auto& [kind, text] : {std::pair("failure", &exchange->failure), std::pair("refusal", &exchange->refusal),
                                   std::pair("missing", &exchange->missing), std::pair("nccl", &exchange->nccl)}) {
    if (line.kind == kind && text->empty()) *text = line.text;
  }
}

}  // namespace

std::string ExchangePlan::name() const { return StrCat(backend, ", ", ranks, ranks == 1 ? " rank" : " ranks"); }

std::vector<ExchangePlan> AllExchanges() {
  return {{.backend = "nccl", .ranks = 1, .native_sums = true, .may_be_refused = false},
          {.backend = "nccl", .ranks = 2, .native_sums = false, .may_be_refused = true},
          {.backend = "staged", .ranks = 2, .native_sums = false, .may_be_refused = false}};
}

Exchange CheckExchange(const ExchangePlan& plan, const LibraryPlace& place, const NcclPlace& nccl, double limit_s) {
  Exchange exchange;
  exchange.name = plan.name();
  ContextOptions options;
  options.size = plan.ranks;
  options.device = plan.backend;
  options.secret = "device_check";
  options.rendezvous_timeout_s = options.stall_timeout_s = kPatience * limit_s;
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
    processes.emplace_back([&](const Report& report) { RunRank(place, nccl, plan, options, report); });
  }
  const Deadline deadline = Deadline::After(limit_s);
  int num_refused = 0;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    for (Line& line : processes[rank].Wait(deadline)) {
      if (line.kind == "failure") line.text = StrCat("rank ", rank, ": ", line.text);
      if (line.kind == "refusal") ++num_refused;
      Take(line, &exchange);
    }
  }
  if (num_refused > 0 && num_refused < plan.ranks && exchange.failure.empty()) {
    exchange.failure = StrCat("NCCL refused ", num_refused, " of ", plan.ranks, " ranks: ", exchange.refusal);
  }
  return exchange;
}

}  // namespace lockstep::device
