// Promise of this file (security.md): counts and sizes of a lying rank are an error that names it, before anything is
// allocated.

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/fuzzing/fuzz.h"
#include "core/sharding/exchange.h"
#include "core/sharding/lookup.h"
#include "core/sharding/string_route.h"
#include "core/sharding/table.h"
#include "core/testing/scripted_communicator.h"

// The messages of a faulty peer in all exchanges of this folder. The first byte selects the reader; the rest is what
// the peer sends (scripted_communicator.h). Memory has exactly the size that the reader asked for, so the address
// sanitizer sees each byte beyond it.

namespace lockstep::fuzzing {
namespace {

using testing::ScriptedCommunicator;
using Numbers = std::vector<int64_t>;

constexpr int64_t kRows = 40;
// Memory for what a message holds: no script is longer.
constexpr int64_t kMostNumbers = 1 << 20;
constexpr uint32_t kReaders = 8;

// The memory of rank 0 for the ids of all ranks, and its contents.
struct Served {
  std::vector<Splits> splits;
  std::vector<std::unique_ptr<int64_t[]>> rows;
  std::vector<int64_t> counts;
};

RoutePlan PlanOf(size_t lookups) {
  static const Numbers ids = {0, 1, 2, 3, 5, 7, 9, 11};
  std::vector<std::vector<int32_t>> inverses(lookups, std::vector<int32_t>(ids.size()));
  std::vector<LookupIds> all;
  for (size_t l = 0; l < lookups; ++l) {
    LookupIds lookup{
        "t", Placement(kRows), DType::kInt64, ids.data(), static_cast<int64_t>(ids.size()), inverses[l].data()};
    // The last of several has keys with their counts.
    if (l > 0 && l + 1 == lookups) {
      lookup.placement.reset();
      lookup.counted = true;
    }
    all.push_back(lookup);
  }
  Result<RoutePlan> plan = PlanRoute(2, all);
  Require(plan.ok(), "a plan");
  return *std::move(plan);
}

Status Route(Communicator& communicator, size_t lookups) {
  const RoutePlan plan = PlanOf(lookups);
  Served served;
  served.splits.resize(lookups);
  served.rows.resize(lookups);
  served.counts.resize(lookups);
  const Status status =
      ExchangeRoute(communicator, "route", plan, served.splits, [&](size_t l, int64_t count) -> Result<int64_t*> {
        Require(count >= 0, "a number of rows");
        // As TensorFlow does for a size that does not fit.
        if (count > kMostNumbers) return ResourceExhausted("no memory");
        served.counts[l] = count;
        served.rows[l] = std::make_unique<int64_t[]>(static_cast<size_t>(count * plan.widths[l]));
        return served.rows[l].get();
      });
  for (size_t l = 0; l < lookups && status.ok(); ++l) {
    const Numbers& recv = served.splits[l].recv;
    Require(recv.size() == 2 && recv[0] == plan.send[l][0] && recv[1] >= 0, "this rank's own ids are there");
    Require(recv[0] + recv[1] == served.counts[l], "the splits are those of the memory");
    const int64_t own = recv[0] * plan.widths[l];
    Require(std::equal(served.rows[l].get(), served.rows[l].get() + own, plan.local_rows[l].begin()), "and unchanged");
  }
  return status;
}

Status Strings(Communicator& communicator, std::string* sent = nullptr) {
  const std::vector<std::string_view> ids = {"a", "bc", "", "def", "ghij", "k"};
  std::vector<int32_t> inverse(ids.size());
  std::vector<StringPlan> plans;
  for (int i = 0; i < 2; ++i) plans.push_back(*PlanStrings(2, {"words", ids, inverse.data()}));
  const StringMessage message = PackStrings(communicator, plans);
  const Result<ServedStrings> served = ExchangeStrings(communicator, "route", plans, message);
  if (!served.ok()) return served.status();
  for (const ServedStrings::Lookup& lookup : served->lookups) {
    Require(static_cast<int64_t>(lookup.strings.size()) == lookup.recv[0] + lookup.recv[1], "the splits are right");
    Require(lookup.times.size() == lookup.strings.size(), "each string has its number");
    size_t sum = 0;
    for (const std::string_view string : lookup.strings) {
      for (const char c : string) sum += static_cast<uint8_t>(c);
    }
    Require(sum < SIZE_MAX, "all bytes can be read");
  }
  return OkStatus();
}

Status Blocks(Communicator& communicator, size_t number) {
  const Numbers send = {1, 2}, recv = {1, 3};
  const std::vector<char> in(3 * 8, 'i');
  std::vector<std::unique_ptr<char[]>> out;
  std::vector<Block> blocks;
  for (size_t b = 0; b < number; ++b) {
    out.push_back(std::make_unique<char[]>(4 * 8));
    blocks.push_back({send, recv, 8, in.data(), out.back().get()});
  }
  return ExchangeBlocks(communicator, "rows", blocks);
}

Status Table(Communicator& communicator, uint32_t reader) {
  const MovedTable table{Placement(kRows), 4};
  const auto local = std::make_unique<char[]>(kRows / 2 * 4);
  const auto all = std::make_unique<char[]>(kRows * 4);
  // In several steps.
  constexpr int64_t kStepBytes = 64;
  if (reader == 0) return GatherTable(communicator, "table", table, local.get(), all.get(), kStepBytes);
  if (reader == 1) {
    return RelayToContiguous(
        communicator, "table", table, RowsIn(local.get(), 4), [](RowRange, const char*) { return OkStatus(); },
        kStepBytes);
  }
  return RelayFromContiguous(
      communicator, "table", table,
      [](RowRange rows, char* data) {
        std::memset(data, 'x', static_cast<size_t>(rows.count() * 4));
        return OkStatus();
      },
      local.get(), kStepBytes);
}

Status Read(Communicator& communicator, uint32_t reader) {
  switch (reader) {
    case 0: return Route(communicator, 1);
    case 1: return Route(communicator, 3);
    case 2: return Strings(communicator);
    case 3: return Blocks(communicator, 1);
    case 4: return Blocks(communicator, 2);
    default: return Table(communicator, reader - 5);
  }
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (char reader = 0; reader < static_cast<char>(kReaders); ++reader) {
    // A rank with the same ids would send what this one sends.
    ScriptedCommunicator silent("");
    (void)Read(silent, static_cast<uint32_t>(reader));
    std::string script = ScriptedCommunicator::Message(silent.sent_to_peer());
    if (reader == 3) script = ScriptedCommunicator::Message(std::string(3 * 8, 'p'));
    if (reader == 4) script = ScriptedCommunicator::Message(std::string(2 * 3 * 8, 'p'));
    if (reader >= 5) {
      script.clear();
      for (int step = 0; step < 12; ++step) script += ScriptedCommunicator::Message(std::string(8 * 4, 'p'));
    }
    seeds.push_back(std::string(1, reader) + script);
    seeds.push_back(std::string(1, reader) + std::string("\xff\xff\0\0\0\0\1\0\0\0", 10));
  }
  return seeds;
}

int Fuzz(const uint8_t* data, size_t size) {
  std::string_view bytes = Bytes(data, size);
  const uint32_t reader = Take(&bytes, kReaders);
  ScriptedCommunicator communicator(bytes);
  const Status status = Read(communicator, reader);
  if (status.ok()) return 0;
  const bool is_own = status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kResourceExhausted;
  Require(is_own || status.code() == StatusCode::kDataLoss, "bytes that nobody sends are a loss of data");
  Require(is_own || status.message().find("rank 1") != std::string::npos, "which names the rank");
  return 0;
}

}  // namespace lockstep::fuzzing
