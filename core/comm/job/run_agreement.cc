#include "core/comm/job/run_agreement.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/collective/arrivals.h"

namespace lockstep {
namespace {

constexpr std::string_view kName = "agreement on the collectives of a graph that runs for the first time";

// Bytes in rank order: operations end with '\n', a rank's list with '\0'.
constexpr char kEndOfOperation = '\n';
constexpr char kEndOfList = '\0';

// The limit of a rank's list: more than any graph has, and little enough to be kept of all ranks.
constexpr int64_t kMostListBytes = int64_t{16} << 20;

using List = std::vector<std::string>;

std::string Serialize(std::span<const std::string> operations) {
  std::string bytes;
  for (const std::string& operation : operations) bytes.append(operation).push_back(kEndOfOperation);
  bytes.push_back(kEndOfList);
  return bytes;
}

// Returns the lists of all ranks. After the last list's end there is nothing, so the list that was begun there is
// dropped.
std::vector<List> Parse(std::string_view bytes) {
  std::vector<List> lists(1);
  std::string operation;
  for (const char c : bytes) {
    if (c == kEndOfList) {
      lists.emplace_back();
    } else if (c == kEndOfOperation) {
      lists.back().push_back(std::exchange(operation, {}));
    } else {
      operation.push_back(c);
    }
  }
  lists.pop_back();
  return lists;
}

// Returns the operation of `list` at `index`, or nothing after its end.
std::optional<std::string> At(const List& list, size_t index) {
  return index < list.size() ? std::optional(list[index]) : std::nullopt;
}

// Finds the first place at which the lists differ, and names the ranks by their operations there. Returns "" if the
// lists are equal.
std::string Difference(const std::vector<List>& lists) {
  size_t most = 0;
  for (const List& list : lists) most = std::max(most, list.size());
  size_t index = 0;
  while (index < most && std::all_of(lists.begin(), lists.end(),
                                     [&](const List& list) { return At(list, index) == At(lists[0], index); })) {
    ++index;
  }
  if (index == most) return "";
  std::map<std::optional<std::string>, std::vector<size_t>> ranks_with;
  for (size_t rank = 0; rank < lists.size(); ++rank) ranks_with[At(lists[rank], index)].push_back(rank);
  std::string message = StrCat("the ranks run different graphs: collective ", index + 1, " is");
  std::string_view separator = " ";
  for (const auto& [operation, ranks] : ranks_with) {
    message += StrCat(separator, operation.value_or("missing"), " on rank ", JoinWithAnd(ranks));
    separator = "; ";
  }
  return message +
         ". Every rank has to build and run the same collectives; code that runs on only one rank must not contain any";
}

}  // namespace

uint64_t RunAgreement::Fingerprint(std::span<const std::string> operations) {
  // FNV-1a.
  uint64_t hash = 14695981039346656037ull;
  for (const char c : Serialize(operations)) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ull;
  return hash;
}

bool RunAgreement::Holds(uint64_t fingerprint) const {
  const MutexLock lock(mutex_);
  return agreed_.contains(fingerprint);
}

// Two steps: each rank always sends 8 bytes, and the text of all lists only if the fingerprints differ. All ranks see
// the same fingerprints, so either all make the second step or none does.
Status RunAgreement::Reach(Communicator& communicator, std::span<const std::string> operations) {
  // The fingerprints come first: they are small, and usually no more has to be exchanged.
  const uint64_t mine = Fingerprint(operations);
  const auto size = static_cast<size_t>(communicator.size());
  const std::vector<int64_t> one_each(size, 1);
  std::vector<uint64_t> fingerprints(size);
  LOCKSTEP_RETURN_IF_ERROR(
      communicator.AllGatherV(kName, {DType::kInt64, 1}, 1, &mine, Expecting(kName, one_each, fingerprints.data())));
  if (std::all_of(fingerprints.begin(), fingerprints.end(), [mine](uint64_t theirs) { return theirs == mine; })) {
    const MutexLock lock(mutex_);
    agreed_.insert(mine);
    return OkStatus();
  }
  const std::string list = Serialize(operations);
  Arrivals lists(kName, kMostListBytes);
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllGatherV(kName, {DType::kUInt8, 1}, static_cast<int64_t>(list.size()),
                                                   list.data(), lists.Into(1)));
  std::string all;
  for (int r = 0; r < communicator.size(); ++r) all += lists.From(r);
  return Disagreement(all, communicator.size());
}

Status RunAgreement::Disagreement(std::string_view lists, int ranks) {
  const std::vector<List> parsed = Parse(lists);
  if (parsed.size() != static_cast<size_t>(ranks)) {
    return DataLoss(StrCat(kName, ": got the lists of ", parsed.size(), " ranks, wanted ", ranks));
  }
  std::string difference = Difference(parsed);
  if (difference.empty()) return DataLoss(StrCat(kName, ": the ranks' fingerprints differ, their lists don't"));
  return FailedPrecondition(std::move(difference));
}

}  // namespace lockstep
