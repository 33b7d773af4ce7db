#include "core/comm/job/bootstrap.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <climits>
#include <fstream>
#include <optional>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/hierarchical/hierarchical_communicator.h"
#include "core/comm/rendezvous/rendezvous.h"
#include "core/comm/shm/shm_communicator.h"

namespace lockstep {
namespace {

// The settings that all ranks must have in common, as one line: they are compared as text, so that the message can show
// them.
std::string SettingsLine(const ContextOptions& options) {
  static_assert(std::endian::native == std::endian::little);
  return StrCat(options.purpose, ", backend ", options.backend, ", layout ", shm::kLayoutVersion, ", ",
                options.shared_bytes_per_rank, " shared bytes per rank",
                options.timeline.empty() ? "" : ", with a timeline");
}

// A rank's description of itself.
struct Member {
  std::string settings;
  std::string host;         // ThisHost
  std::string host_name;    // for messages
  uint64_t pid = 0;         // for messages
  std::string socket;       // its local socket for ranks of its host
  uint16_t later_port = 0;  // of rank 0
  std::string device;       // the backend of its device; "": none
};

std::string Encode(const Member& member) {
  ByteWriter writer;
  writer.String(member.settings);
  writer.String(member.host);
  writer.String(member.host_name);
  writer.Number(member.pid);
  writer.String(member.socket);
  writer.Number(member.later_port);
  writer.String(member.device);
  return writer.Take();
}

// Returns nothing if it cannot be read.
std::optional<Member> Decode(std::string_view note) {
  ByteReader reader(note);
  Member member;
  member.settings = reader.String();
  member.host = reader.String();
  member.host_name = reader.String();
  member.pid = reader.Number<uint64_t>();
  member.socket = reader.String();
  member.later_port = reader.Number<uint16_t>();
  member.device = reader.String();
  if (!reader.Complete()) return std::nullopt;
  return member;
}

Result<std::vector<Member>> Decode(const std::vector<std::string>& notes) {
  std::vector<Member> members;
  for (const std::string& note : notes) {
    std::optional<Member> member = Decode(note);
    if (!member) return DataLoss(StrCat("the data of rank ", members.size(), " about itself cannot be read"));
    members.push_back(*std::move(member));
  }
  return members;
}

// Returns a rank's name in errors.
std::string Name(int rank, const Member& member) {
  return StrCat("rank ", rank, " (process ", member.pid, " on host ", member.host_name, ")");
}
std::string NameByNote(int rank, std::string_view note) {
  const std::optional<Member> member = Decode(note);
  return member ? Name(rank, *member) : "";
}

// Returns "on its GPU (nccl)", for messages.
std::string PlaceOf(const Member& member) {
  return member.device.empty() ? "on its CPU" : StrCat("on its GPU (", member.device, ")");
}

// A job's tensors are on GPUs, or on CPUs, on all ranks. All GPUs use one backend.
Status CompareDevices(const std::vector<Member>& members) {
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank].device == members[0].device) continue;
    return FailedPrecondition(StrCat(Name(0, members[0]), " trains ", PlaceOf(members[0]), ", and ",
                                     Name(static_cast<int>(rank), members[rank]), " ", PlaceOf(members[rank]),
                                     "; all ranks of a job use GPUs with one backend, or none does: compare "
                                     "CUDA_VISIBLE_DEVICES and the drivers of both"));
  }
  return OkStatus();
}

// Each rank compares all settings with rank 0's, and so comes to the same result without another exchange.
Status CompareSettings(const std::vector<Member>& members) {
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank].settings == members[0].settings) continue;
    return FailedPrecondition(StrCat("the ranks are configured differently: rank 0 has ", members[0].settings,
                                     "; rank ", rank, " has ", members[rank].settings));
  }
  return OkStatus();
}

// Returns the ranks of each host, in the order of their numbers; hosts are in the order of their first ranks. kApart:
// each rank is a host of its own.
enum class Hosts { kActual, kApart };
std::vector<std::vector<int>> GroupByHost(const std::vector<Member>& members, Hosts hosts) {
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < static_cast<int>(members.size()); ++rank) {
    auto group = std::find_if(groups.begin(), groups.end(), [&](const std::vector<int>& ranks) {
      return hosts == Hosts::kActual && members[ranks.front()].host == members[rank].host;
    });
    if (group == groups.end()) group = groups.insert(group, std::vector<int>());
    group->push_back(rank);
  }
  return groups;
}

std::string NameOfThisHost() {
  std::array<char, HOST_NAME_MAX + 1> name = {};
  return gethostname(name.data(), HOST_NAME_MAX) == 0 ? name.data() : "?";
}

// Returns an error if there are more hosts, or more ranks on one host, than the backend supports.
Status CheckHosts(const ContextOptions& options, const std::vector<Member>& members,
                  const std::vector<std::vector<int>>& groups) {
  if (options.backend == "shm" && groups.size() > 1) {
    const int other = groups[1].front();
    return FailedPrecondition(StrCat("backend 'shm' is for the ranks of one host: rank 0 is on ", members[0].host_name,
                                     ", rank ", other, " on ", members[other].host_name));
  }
  for (const std::vector<int>& ranks : groups) {
    if (ranks.size() <= static_cast<size_t>(kMaxRanksPerHost)) continue;
    return FailedPrecondition(StrCat("host ", members[ranks.front()].host_name, " has ", ranks.size(),
                                     " ranks of the job, at most ", kMaxRanksPerHost));
  }
  return OkStatus();
}

Result<std::unique_ptr<Communicator>> OnOneHost(const ContextOptions& options, shm::Group group) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> made,
                            shm::ShmCommunicator::Create(options, std::move(group)));
  return made;
}

}  // namespace

std::string ThisHost() {
  std::string id;
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  if (!std::getline(boot, id)) id = NameOfThisHost();
  std::array<char, 64> network = {};
  const ssize_t length = readlink("/proc/self/ns/net", network.data(), network.size() - 1);
  return StrCat(id, ' ', std::string_view(network.data(), length > 0 ? static_cast<size_t>(length) : 0));
}

Result<std::unique_ptr<Communicator>> Assemble(const ContextOptions& options, int* later_port) {
  const Deadline deadline = Deadline::After(options.rendezvous_timeout_s);
  shm::Group group;
  if (options.size == 1) {
    group.ranks = {0};
    group.sockets = {""};
    return OnOneHost(options, std::move(group));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(group.mesh, shm::Mesh::Listen());
  const Member self = {SettingsLine(options), options.host.empty() ? ThisHost() : options.host,
                       NameOfThisHost(),      static_cast<uint64_t>(getpid()),
                       group.mesh->name(),    static_cast<uint16_t>(options.later_port),
                       options.device};
  LOCKSTEP_ASSIGN_OR_RETURN(RendezvousResult rendezvous, JoinRendezvous({.rank = options.rank,
                                                                         .size = options.size,
                                                                         .address = options.rendezvous,
                                                                         .secret = options.secret,
                                                                         .note = Encode(self),
                                                                         .timeout_s = options.rendezvous_timeout_s,
                                                                         .listener = options.listener,
                                                                         .listen = options.listen,
                                                                         .ended = options.ended,
                                                                         .name = NameByNote,
                                                                         .keep_connections = true}));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Member> members, Decode(rendezvous.notes));
  LOCKSTEP_RETURN_IF_ERROR(CompareSettings(members));
  LOCKSTEP_RETURN_IF_ERROR(CompareDevices(members));
  if (later_port != nullptr) *later_port = members[0].later_port;
  const auto groups = GroupByHost(members, options.backend == "gloo" ? Hosts::kApart : Hosts::kActual);
  LOCKSTEP_RETURN_IF_ERROR(CheckHosts(options, members, groups));

  hierarchical::Place place;
  for (size_t host = 0; host < groups.size(); ++host) {
    const auto found = std::find(groups[host].begin(), groups[host].end(), options.rank);
    if (found == groups[host].end()) continue;
    place.host = static_cast<int>(host);
    group.index = static_cast<int>(found - groups[host].begin());
    group.ranks = groups[host];
  }
  for (const int rank : group.ranks) group.sockets.push_back(members[rank].socket);
  group.key = rendezvous.key;
  if (groups.size() == 1) return OnOneHost(options, std::move(group));
  place.hosts = groups;
  group.host = members[options.rank].host_name;
  for (int rank = 0; rank < options.size; ++rank) {
    place.names.push_back(Name(rank, members[rank]));
  }
  return hierarchical::HierarchicalCommunicator::Create(options, std::move(place), std::move(group),
                                                        std::move(rendezvous), deadline);
}

}  // namespace lockstep
