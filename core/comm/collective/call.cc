#include "core/comm/collective/call.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/strings.h"

namespace lockstep {
namespace {

// One round of a multiply-and-fold hash: both halves of the 128-bit product are used. It protects against accidents,
// not against attackers: the ranks trust each other.
uint64_t Mix(uint64_t hash, uint64_t value) {
  const auto product = static_cast<unsigned __int128>(hash ^ value) * 0x9e3779b97f4a7c15u;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64) ^ 0xd1b54a32d192ed03u;
}

}  // namespace

// The name is hashed in words of 8 bytes, after its length, because the last word is filled up with zeros. The result
// is made odd at the end, so that it differs from kDeclinedCall.
uint64_t FingerprintOf(const Call& call) {
  uint64_t hash =
      Mix(0x2545f4914f6cdd1d, static_cast<uint64_t>(call.kind) | static_cast<uint64_t>(call.dtype) << 8 |
                                  static_cast<uint64_t>(call.op) << 16 | static_cast<uint64_t>(call.root) << 24);
  hash = Mix(hash, static_cast<uint64_t>(call.width));
  if (call.count_agrees) {
    hash = Mix(hash, static_cast<uint64_t>(call.count));
    for (int64_t count : call.counts) hash = Mix(hash, static_cast<uint64_t>(count));
  }
  std::string_view name = call.name;
  hash = Mix(hash, name.size());
  for (; name.size() >= 8; name.remove_prefix(8)) {
    uint64_t piece;
    std::memcpy(&piece, name.data(), sizeof(piece));
    hash = Mix(hash, piece);
  }
  uint64_t rest = 0;
  if (!name.empty()) std::memcpy(&rest, name.data(), name.size());
  return Mix(hash, rest) | 1;
}

std::string DescribeCall(const Call& call) {
  const std::string_view dtype = DTypeName(call.dtype);
  const std::string title = StrCat(CallKindName(call.kind), " '", call.name, "'");
  const std::string item = call.width == 1 ? std::string(dtype) : StrCat(dtype, "[", call.width, "]");
  switch (call.kind) {
    case CallKind::kAllReduce: return StrCat(title, " (", ReduceOpName(call.op), " of ", call.count, " x ", item, ")");
    case CallKind::kReduceScatter: {
      std::string text = StrCat(title, " (", ReduceOpName(call.op), " of ", item, ", counts");
      for (const int64_t count : call.counts) text += StrCat(" ", count);
      return text + ")";
    }
    case CallKind::kBroadcast: return StrCat(title, " (", call.count, " bytes of rank ", call.root, ")");
    case CallKind::kAllGatherV:
    case CallKind::kAllToAllV: return StrCat(title, " (items of ", item, ")");
    default: return title;
  }
}

Status CallsDiffer(int rank, int64_t number, std::span<const int> ranks, std::span<const uint64_t> fingerprints,
                   const std::function<std::string(int i)>& describe) {
  // A call: the first rank that made it, and all ranks that did.
  struct Group {
    int first;
    std::vector<int> ranks;
  };
  std::vector<Group> groups;
  for (int i = 0; i < static_cast<int>(ranks.size()); ++i) {
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const Group& g) { return fingerprints[g.first] == fingerprints[i]; });
    if (group == groups.end()) group = groups.insert(group, {i, {}});
    group->ranks.push_back(ranks[i]);
  }
  std::string text = StrCat("rank ", rank, ": the ranks disagree about call ", number, ":");
  for (const Group& group : groups) {
    text += StrCat(&group == &groups.front() ? " " : "; ", group.ranks.size() == 1 ? "rank " : "ranks ",
                   JoinWithAnd(group.ranks), " called ", describe(group.first));
  }
  text += "; every rank has to make the same calls, so none may end its data or its steps before the others";
  return FailedPrecondition(std::move(text));
}

}  // namespace lockstep
